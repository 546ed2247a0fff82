#!/usr/bin/env bash
# Multi30k en→de on one GPU: train on the training set, choose on the validation set, read test2016 once.
# Usage: benchmarks/multi30k.sh FOLDER_OF_MULTI30K_TOK RUN
set -euo pipefail
data=$1
run=$2
regard train translate \
    --data "$data/train.lc.norm.tok.en.gz:$data/train.lc.norm.tok.de.gz" \
    --valid "$data/val.lc.norm.tok.en.gz:$data/val.lc.norm.tok.de.gz" \
    --model transformer-tiny --out "$run" --set data.tokenized=true decode.beam=5
regard evaluate "$run" \
    --data "$data/test_2016_flickr.lc.norm.tok.en.gz:$data/test_2016_flickr.lc.norm.tok.de.gz" --answers "$run/test2016.jsonl"
