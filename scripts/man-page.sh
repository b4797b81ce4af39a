#!/bin/sh
# Makes a manual page of section 5 from a Markdown document, so that there is one source of both.
#
#   scripts/man-page.sh DOCUMENT.md NAME "what it is, in a few words"
#
# Understands what our documents use: headings, paragraphs, lists, tables, fenced text, `code`,
# links (their text stays).
set -eu
[ $# -eq 3 ] || { echo "usage: scripts/man-page.sh DOCUMENT.md NAME SUMMARY" >&2; exit 2; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml" | head -n 1)
awk -v name="$2" -v summary="$3" -v version="$version" '
    # Text as roff reads it back: no escapes, no request at the start of a line.
    function plain(text) {
        gsub(/\\/, "\\e", text)
        if (text ~ /^[.\x27]/) text = "\\&" text
        return text
    }
    # Code in bold; links by their text.
    function inline(text,    before, code) {
        while (match(text, /\[[^]]*\]\([^)]*\)/)) {
            code = substr(text, RSTART, RLENGTH)
            sub(/^\[/, "", code)
            sub(/\]\(.*$/, "", code)
            text = substr(text, 1, RSTART - 1) code substr(text, RSTART + RLENGTH)
        }
        text = plain(text)
        while (match(text, /`[^`]+`/)) {
            before = substr(text, 1, RSTART - 1)
            code = substr(text, RSTART + 1, RLENGTH - 2)
            text = before "\\fB" code "\\fP" substr(text, RSTART + RLENGTH)
        }
        gsub(/\*\*/, "", text)
        return text
    }
    BEGIN {
        printf ".TH %s 5 \"\" \"Terrace %s\"\n.nh\n.ad l\n", toupper(name), version
        printf ".SH NAME\n%s \\- %s\n.SH DESCRIPTION\n", name, summary
    }
    /^<!--/ { next }
    /^```/ {
        fenced = !fenced
        print fenced ? ".PP\n.nf" : ".fi"
        next
    }
    fenced { print plain($0); next }
    /^# / { next }
    /^#+ / { sub(/^#+ /, ""); print ".SH \"" inline(toupper($0)) "\""; next }
    # The head of a table says what its columns are; the columns say it themselves.
    !/^\|/ { table = 0 }
    /^\|/ && table++ < 2 { next }
    /^\|/ {
        columns = split($0, cell, / *\| */)
        printf ".TP\n%s\n", inline(cell[2])
        for (i = 3; i < columns; i++) printf "%s%s", inline(cell[i]), i < columns - 1 ? "; " : "\n"
        next
    }
    /^- / { print ".IP \\(bu 2"; print inline(substr($0, 3)); next }
    /^$/ { print ".PP"; next }
    { sub(/^ +/, ""); print inline($0) }' "$1"
