"""The Lua scripts: the operations that must be atomic in Redis.

They compute the names of keys, so they do not work on a Redis Cluster. RQ does not work there either.

ARM and IS_LIVE take many jobs of one queue at once. Their KEYS are:

1. the queue's scheduled set
2. the queue's list
3. the set of queues
4. the identity of the database's server, if this is the Redis of the control queue
5. the wake list, if dispatchers take from the queue

Their ARGV begin with six values:

1. the prefix of job hashes
2. now, as RQ writes times (these texts sort by time)
3. the earliest start (written in the same way) of a started job that still counts as live
4. 1 to search the list, because the order of its entries cannot be trusted; else 0
5. the score (Unix seconds) of the oldest entry of the scheduled set that still counts as live
6. the latest score to which a due job may have been put off
"""

from __future__ import annotations

FOREIGN = "RQSCHED_FOREIGN"
"""The first word of the error by which LEASE and ARM refuse a process of another database server."""

_LIVENESS = """
local scheduled, list, queues, server, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, now, started_after, exact = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local oldest_live, latest_put_off = tonumber(ARGV[5]), tonumber(ARGV[6])

-- The list is first in, first out, so a job that is older than the head of the list was popped. If jobs are pushed in
-- front (exact), this may be wrong, so the list is searched.
local function is_on_list(id, enqueued_at)
  local head = redis.call('LINDEX', list, 0)
  if not head then return false end
  if head == id then return true end
  local head_at = redis.call('HGET', prefix .. head, 'enqueued_at')
  if head_at and enqueued_at and enqueued_at >= head_at then return true end
  return exact and redis.call('LPOS', list, id) ~= false
end

-- `due` is a score. For a job that is due at once it is another word, or missing.
local function is_live(id, due)
  local has = redis.call('HMGET', prefix .. id, 'data', 'status', 'enqueued_at', 'started_at')
  if not has[1] then return false end
  -- If a job in the scheduled set is late beyond the grace, the job is not live, because no scheduler moves it. So ARM
  -- puts it on the list, which every worker serves. A job is also not live if its score is later than its due time and
  -- later than we ever put off a job, because SQL does not know that time any more.
  local score = tonumber(redis.call('ZSCORE', scheduled, id) or '')
  local latest = math.max(tonumber(due) or 0, latest_put_off)
  if score and score >= oldest_live and score <= latest then return true end
  if has[2] == 'queued' then return is_on_list(id, has[3]) end
  return has[2] == 'started' and has[4] and has[4] > started_after
end
"""

_FOREIGNNESS = f"""
local foreign = '{FOREIGN} another server is recorded'
local function is_foreign(key, identity)
  local recorded = identity ~= '' and redis.call('GET', key)
  return recorded and recorded ~= identity
end
"""

IS_LIVE = (
    _LIVENESS
    + """
local answers = {}
for i = 7, #ARGV, 2 do answers[#answers + 1] = is_live(ARGV[i], ARGV[i + 1]) and 1 or 0 end
return answers
"""
)
"""Answer for each job whether it is live (docs/architecture.md, "Protocol"). The rest of ARGV has the id and the score
of each job."""

ARM = (
    _LIVENESS
    + _FOREIGNNESS
    + """
local wake_seconds, identity, shared = ARGV[7], ARGV[8], tonumber(ARGV[9])
local own, names = tonumber(ARGV[10 + shared]), 10 + shared
local template, texts = {'created_at', now}, {}
for i = 10, 9 + shared do template[#template + 1] = ARGV[i] end
for i = 1, own do texts[2 * i - 1] = ARGV[names + i] end
if is_foreign(server, identity) then return redis.error_reply(foreign) end

local function arm(id, place, values)
  if is_live(id, place) then return 0 end
  local hash = prefix .. id
  redis.call('DEL', hash)
  -- Write the longest values first: after short ones they would make Redis convert a compact hash.
  for i = 1, own do texts[2 * i] = ARGV[values + i] end
  if own > 0 then redis.call('HSET', hash, unpack(texts)) end
  if place == 'front' or place == 'back' then
    redis.call('HSET', hash, 'status', 'queued', 'enqueued_at', now, unpack(template))
    redis.call('ZREM', scheduled, id)
    redis.call(place == 'front' and 'LPUSH' or 'RPUSH', list, id)
    return 2
  end
  redis.call('HSET', hash, 'status', 'scheduled', unpack(template))
  local head = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  redis.call('ZADD', scheduled, place, id)
  return (#head == 0 or tonumber(place) < tonumber(head[2])) and 2 or 1
end

local answers, is_first = {}, false
for i = names + own + 1, #ARGV, 2 + own do
  local answer = arm(ARGV[i], ARGV[i + 1], i + 1)
  is_first = is_first or answer == 2
  answers[#answers + 1] = answer > 0 and 1 or 0
end
redis.call('SADD', queues, list)
if is_first and wake then
  redis.call('RPUSH', wake, '1')
  redis.call('LTRIM', wake, 0, 7)
  redis.call('EXPIRE', wake, wake_seconds)
end
return answers
"""
)
"""Write the hash and the place of each job together, unless the job is live; answers 1 for each written job, else 0.

A job that becomes the earliest wakes a dispatcher. After the six values ARGV continue with:

- the life of the wake key in seconds
- the identity of this process's server, which is compared with the recorded one; empty for no comparison
- the number of shared texts, and these texts: names and values that every hash gets
- the number of own fields, and their names: each hash gets its own values for them
- for each job its id, its place (a score, or an end of the list: 'front' or 'back'), and the values of its own fields
"""

LEASE = (
    _FOREIGNNESS
    + """
-- KEYS: scheduled set, list, the server's identity, freezes. ARGV: now, the lease's end (Unix seconds), the most to
-- take, the identity of this process.
if is_foreign(KEYS[3], ARGV[4]) then return redis.error_reply(foreign) end
if redis.call('HEXISTS', KEYS[4], '*') == 1 then return false end
local limit = tonumber(ARGV[3])
local taken = redis.call('LRANGE', KEYS[2], 0, limit - 1)
if #taken > 0 then redis.call('LTRIM', KEYS[2], #taken, -1) end
if #taken < limit then
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, limit - #taken)
  for _, id in ipairs(due) do taken[#taken + 1] = id end
end
for _, id in ipairs(taken) do redis.call('ZADD', KEYS[1], ARGV[2], id) end
return taken
"""
)
"""Take the entries of the list and the due links, and put them into the scheduled set until the lease ends.

While everything is frozen, nothing is taken and the answer is nil.
"""

SET_FREEZE = """
-- KEYS: freezes. ARGV: the freeze's uid and text.
for uid in string.gmatch(redis.call('HGET', KEYS[1], '*:released') or '', '%S+') do
  if uid == ARGV[1] then return 0 end
end
return redis.call('HSETNX', KEYS[1], '*', ARGV[2])
"""
"""Freeze everything, unless it is frozen already or this freeze was thawed; answers 1 if it was stored."""

DROP_FREEZE = """
-- KEYS: freezes. ARGV: the uids that were thawed, and the text of the freeze to remove; empty for any.
redis.call('HSET', KEYS[1], '*:released', ARGV[1])
if ARGV[2] == '' or redis.call('HGET', KEYS[1], '*') == ARGV[2] then redis.call('HDEL', KEYS[1], '*') end
"""
"""Remove the freeze of everything, and remember which freezes were thawed."""

NEXT_LOOK = """
-- KEYS: scheduled set, the dispatcher that looks first. ARGV: the name of the asking dispatcher, how long it stays the
-- first (milliseconds), '1' to replace another first dispatcher.
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local first = redis.call('GET', KEYS[2])
local is_first = not first or first == ARGV[1] or ARGV[3] == '1'
if is_first then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
return {is_first and 1 or 0, head[2]}
"""
"""Answer whether the caller looks first (it then stays first for a while), and the earliest score if there is any."""

RECORD_DATABASE_ID = """
-- KEYS: the key of the database's id, the flush marker of a pass. ARGV: the database's id.
if redis.call('DEL', KEYS[2]) == 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return 1
"""
"""Record the database's id unless an id is recorded; answers 0 if the flush marker is gone."""

PUSH_MARK = """
-- KEYS: the list of marks. ARGV: the mark, the one that it follows, how many to keep, their life in seconds.
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest == ARGV[1] then return 1 end
if newest and newest ~= ARGV[2] then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, ARGV[3] - 1)
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
"""Put a mark in front of the mark that it follows, or into an empty list; answers 0 if another mark is in front."""

CLAIM_IDENTITY = """
-- KEYS: the database's id, the server's identity, when that server was seen and its database's id, since when another
-- server waits to take over. ARGV: the id of this process's database, the three parts of its server's identity ('-' for
-- an open part), the action ('ask', 'claim' or 'adopt'), for how many seconds the recorded server counts as alive, for
-- how many seconds another server then waits for a sign of it, and '1' for a process that was refused lately: it is not
-- recorded as the first after a flush.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return {'other', owner} end
local mine, known = {ARGV[2], ARGV[3], ARGV[4]}, {}
local recorded, now = redis.call('GET', KEYS[2]), tonumber(redis.call('TIME')[1])
local seen_at, seen_id = string.match(redis.call('GET', KEYS[3]) or '', '(%d+) (%S+)')
if seen_id and seen_id ~= ARGV[1] then recorded = false end
for part in string.gmatch(recorded or '', '%S+') do known[#known + 1] = part end

local function answer(outcome, identity)
  if ARGV[5] ~= 'ask' and identity then
    redis.call('SET', KEYS[2], identity)
    redis.call('SET', KEYS[3], string.format('%d %s', now, ARGV[1]))
    redis.call('DEL', KEYS[4])
  end
  return {outcome, identity or recorded, recorded or ''}
end
-- An open part equals everything, and is filled from the other identity.
local function same(i) return known[i] == mine[i] or known[i] == '-' or mine[i] == '-' end
local function filled()
  local parts = {}
  for i = 1, 3 do parts[i] = mine[i] ~= '-' and mine[i] or known[i] or '-' end
  return table.concat(parts, ' ')
end

if not recorded then
  if ARGV[8] == '1' then return answer('flushed') end
  return answer('first', filled())
end
if ARGV[5] == 'adopt' then return answer('adopted', table.concat(mine, ' ')) end
if same(1) and same(2) then
  if same(3) then return answer('same', filled()) end
  if tonumber(mine[3]) > tonumber(known[3]) then return answer('promoted', filled()) end
  return answer('older')
end
if now - tonumber(seen_at or 0) < tonumber(ARGV[6]) then return answer('alive') end
local since = redis.call('GET', KEYS[4])
if not since and ARGV[5] == 'claim' then redis.call('SET', KEYS[4], now, 'EX', ARGV[6]) end
if not since or now - since < tonumber(ARGV[7]) then return answer('waits') end
return answer('taken', table.concat(mine, ' '))
"""
"""Compare the server of a process with the recorded server, and record the process's server if it may use the queue.

Answers the outcome ('other': the queue belongs to another database), the identity that is recorded now, and the
identity that was recorded before. After 'first', 'same', 'promoted', 'adopted' and 'taken' the process may use the
queue. After 'older', 'alive', 'waits' and 'flushed' it may not.
"""

TRY_WRITE = """
-- KEYS: a key for this test only. ARGV: its life in milliseconds.
-- A full Redis refuses a script at its first write, but would not refuse DEL. So SET is the first.
redis.call('SET', KEYS[1], 1)
for _, words in ipairs({{'HSET', 'a', 1}, {'ZADD', 1, 'a'}, {'SADD', 'a'}, {'RPUSH', 'a'}}) do
  redis.call('DEL', KEYS[1])
  redis.call(words[1], KEYS[1], unpack(words, 2))
end
redis.call('LTRIM', KEYS[1], 0, 0)
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
return 1
"""
"""Make the same writes as arming a link and putting a job on a queue, but to a key that nothing reads; answers 1."""
