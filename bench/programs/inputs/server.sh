#!/bin/sh
# A key-value server and its load. usage: server.sh redis|memcached KVLOAD SEED KEYS BYTES REQUESTS
set -eu
which=$1 load=$2
shift 2
socket=/tmp/terrace-kv.sock
rm -f "$socket"
case $which in
redis) redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --daemonize no \
    >/dev/null & ;;
memcached) memcached -u root -s "$socket" -m 900 -t 1 & ;;
esac
server=$!
"$load" "$which" "$socket" "$@"
kill "$server"
wait "$server" 2>/dev/null || true
rm -f "$socket"
