#!/usr/bin/env bash
# What CI's smoke job runs, by one command: parity, token match, sweep and gate of the tiny preset,
# gated against the baseline as it stands at the merge base, so that a change cannot hide behind a
# baseline it brings along. Then the report, JUnit XML and (inside a GitHub job) the step summary.
#   scripts/smoke.sh [REF]     REF: what the change is going to be merged into; default origin/main
# Ends with the exit code of the run.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
scripts/setup.sh
REF=${1:-origin/main}
HARNESS=$(dirname "$ENV_PYTHON")/neuron-harness
BASELINE=suites/baselines/tiny

if ! MERGE_BASE=$(git merge-base HEAD "$REF"); then
    echo "smoke: HEAD and $REF have no common ancestor here; fetch $REF with its history, or name another ref" >&2
    exit 2
fi
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
if ! git archive "$MERGE_BASE" "$BASELINE" | tar -x -C "$WORK"; then
    echo "smoke: the merge base $MERGE_BASE has no $BASELINE; nothing can be gated" >&2
    exit 3
fi

mkdir -p runs
OUT=$(mktemp -d runs/smoke-XXXXXX)
echo "smoke: gate against $BASELINE of $(git rev-parse --short "$MERGE_BASE") (merge base with $REF)"
CODE=0
"$HARNESS" run --preset tiny --baseline "$WORK/$BASELINE" --out "$OUT" || CODE=$?
RUN=("$OUT"/*/)
if [ ! -f "${RUN[0]}run.json" ]; then
    echo "smoke: the run left no record in $OUT" >&2
    [ "$CODE" -ne 0 ] || CODE=4
    exit "$CODE"
fi
REPORT=0
"$HARNESS" report "${RUN[0]%/}" --format md,html,junit,summary || REPORT=$?
# A run that passed and a report that did not are two stories: the sadder one is told.
[ "$CODE" -ne 0 ] || CODE=$REPORT
exit "$CODE"
