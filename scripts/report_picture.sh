#!/usr/bin/env bash
# Makes the README's picture of a report: scripts/report_picture.sh RUN_DIR
# Needs Chromium (chromium or chromium-browser) and nothing of the network.
set -euo pipefail
RUN=${1:?name a run directory, e.g. the one that make demo has printed}
TO=${2:-docs/report.png}
MAX_BYTES=300000
CHROMIUM=$(command -v chromium || command -v chromium-browser) || {
    echo "report_picture: Chromium is not installed" >&2
    exit 2
}
[ -f "$RUN/report.html" ] || {
    echo "report_picture: $RUN/report.html is missing; make it: neuron-harness report $RUN" >&2
    exit 2
}
PROFILE=$(mktemp -d)
trap 'rm -rf "$PROFILE"' EXIT
mkdir -p "$(dirname "$TO")"
"$CHROMIUM" --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$PROFILE" --hide-scrollbars \
    --blink-settings=preferredColorScheme=1 --window-size=1200,1500 \
    --screenshot="$(realpath -m "$TO")" "file://$(realpath "$RUN/report.html")" 2>/dev/null
SIZE=$(stat -c %s "$TO")
[ "$SIZE" -le "$MAX_BYTES" ] || {
    echo "report_picture: $TO has $SIZE bytes, over $MAX_BYTES" >&2
    exit 1
}
echo "$TO: $SIZE bytes"
