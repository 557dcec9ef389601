#!/usr/bin/env bash
# tools/fetch_text.sh: the King James Bible as data/kjv/train.txt and, its last book, data/kjv/valid.txt.
# Debian's bible-kjv prints one verse a line behind its reference ("Ge1:1 In the beginning ..."). The
# references are no prose and easy to predict, so they are dropped; a blank line parts chapters.
source "$(dirname "$0")/common.sh"

out=data/kjv
[ -f "$out/valid.txt" ] && [ "$out/valid.txt" -nt tools/fetch_text.sh ] && exit 0

command -v bible >/dev/null || tools/setup.sh build
say "King James Bible to $out"

verses() {
  bible -f "$1" </dev/null | awk '{
    chapter = $1
    sub(/:.*/, "", chapter)
    if (NR > 1 && chapter != last) print ""
    last = chapter
    sub(/^[^ ]+ /, "")
    print
  }'
}
mkdir -p "$out"
verses gen1:1-jude1:25 >"$out/train.partial"
verses rev1:1-rev22:21 >"$out/valid.partial"
[ -s "$out/train.partial" ] && [ -s "$out/valid.partial" ] || fail "'bible -f' printed nothing: reinstall bible-kjv"
mv "$out/train.partial" "$out/train.txt"
mv "$out/valid.partial" "$out/valid.txt"
