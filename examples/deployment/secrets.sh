#!/bin/sh
# Draws the secrets of compose.yml into the folder `secrets`, which must not be there yet.
set -eu
draw() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
mkdir secrets
cd secrets
database=$(draw) redis=$(draw)
echo "$database" > database_password
echo "$redis" > redis_password
echo "postgresql://rqsched:$database@postgres-1:5432,postgres-2:5432/rqsched?target_session_attrs=read-write" > database_url
echo "redis+sentinel://:$redis@sentinel-1:26379,sentinel-2:26379,sentinel-3:26379/mymaster/0" > redis_url
echo "[{\"name\": \"admin\", \"role\": \"admin\", \"namespaces\": \"*\", \"token\": \"$(draw)\"}]" > tokens
# The user of each container reads what is mounted there; the folder is closed to others on this machine.
chmod 444 ./*
