"""A linter for the English of this repository.

    python tools/prose/lint.py                    a line per scope: words, errors, pronouns per 100 words
    python tools/prose/lint.py --list             every finding: path:line: rule: text -> advice
    python tools/prose/lint.py --list src/regard/data README.md      the same for some files or folders
    python tools/prose/lint.py --list --rule picture                 the findings of one rule

`make prose` runs the first command. The exit code is 1 if a limit is exceeded.

Scopes

    messages   string literals of two or more words in src, and the texts of HTML and JavaScript files
    help       docstrings of settings, help texts and docstrings of commands
    docs       README.md, docs, CONTRIBUTING.md, CHANGELOG.md, THIRD_PARTY.md, benchmarks/RESULTS.md
    code       docstrings and comments of src, benchmarks, examples and tools
    tests      docstrings and comments of tests

Every scope must have no errors and at most 3.0 pronouns per 100 words.

Rules

    dialect.tsv     regular expressions for words and phrases to avoid, with advice and an example
    backtick-prose  code in backticks must be a name that exists, or look like code
    unknown-name    settings, commands, tasks and options in texts must exist; old names only in the
                    section "Renamed" of CHANGELOG.md, in backticks
    glossary        words to avoid are allowed in the column "Not" of the glossary of CONTRIBUTING.md
    allow.tsv       exceptions with a reason, at most 60 lines; an entry without a finding is an error

Files: `blocks.py` (paragraphs), `readers.py` (texts of source files), `scopes.py` (files of a scope), `names.py` (names that
exist), `rules.py` (findings), `lint.py` (command line). Only the standard library is required.
"""
