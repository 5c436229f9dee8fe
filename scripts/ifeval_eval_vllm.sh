#!/usr/bin/env bash
# scripts/instructions/ifeval_eval_vllm.sh, at RuscaRL's place of it.
exec bash "$(dirname "${BASH_SOURCE[0]}")/instructions/ifeval_eval_vllm.sh" "$@"
