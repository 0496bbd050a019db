"""The Lua scripts: what must be atomic in Redis. No cluster (RQ's own limit): keys are computed inside.

ARM and IS_LIVE take many jobs of one queue at once. KEYS are the queue's scheduled set, its list, the set of queues
and, where dispatchers take from it, the wake list. ARGV begin with the prefix of job hashes, now and the oldest live
start (RQ's time texts, which sort), whether to search the list when the order of its entries cannot be trusted, and two
scores (Unix seconds): of the oldest entry of the scheduled set that still counts as live, and the latest to which
a job that is due may have been put off.
"""

from __future__ import annotations

_LIVENESS = """
local scheduled, list, queues, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local prefix, now, started_after, exact = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local oldest_live, latest_put_off = tonumber(ARGV[5]), tonumber(ARGV[6])

-- The list is first in, first out: an entry older than its head was popped. Only where jobs are pushed in front
-- (exact) may that be wrong, and the list is searched.
local function is_on_list(id, enqueued_at)
  local head = redis.call('LINDEX', list, 0)
  if not head then return false end
  if head == id then return true end
  local head_at = redis.call('HGET', prefix .. head, 'enqueued_at')
  if head_at and enqueued_at and enqueued_at >= head_at then return true end
  return exact and redis.call('LPOS', list, id) ~= false
end

-- `due` is a score; what is due at once has another word or none there.
local function is_live(id, due)
  local has = redis.call('HMGET', prefix .. id, 'data', 'status', 'enqueued_at', 'started_at')
  if not has[1] then return false end
  -- What is late there beyond the grace nobody promotes: it is put on the list, which every worker serves. What is
  -- there later than its time or any put-off of ours is of a time that SQL does not know any more.
  local score = tonumber(redis.call('ZSCORE', scheduled, id) or '')
  local latest = math.max(tonumber(due) or 0, latest_put_off)
  if score and score >= oldest_live and score <= latest then return true end
  if has[2] == 'queued' then return is_on_list(id, has[3]) end
  return has[2] == 'started' and has[4] and has[4] > started_after
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
"""Return whether the job of each pair of id and score in the rest of ARGV is live (docs/architecture.md,
"Protocol")."""

ARM = (
    _LIVENESS
    + """
local wake_seconds, shared = ARGV[7], tonumber(ARGV[8])
local first_job = 9 + shared
local template = {'created_at', now}
for i = 9, first_job - 1 do template[#template + 1] = ARGV[i] end

local function arm(id, place, first_own, last_own)
  if is_live(id, place) then return 0 end
  local hash = prefix .. id
  redis.call('DEL', hash)
  -- The longest values first: a hash that is compact would be written anew for them.
  if last_own >= first_own then redis.call('HSET', hash, unpack(ARGV, first_own, last_own)) end
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

local answers, is_first, i = {}, false, first_job
while i <= #ARGV do
  local last_own = i + 2 + tonumber(ARGV[i + 2])
  local answer = arm(ARGV[i], ARGV[i + 1], i + 3, last_own)
  is_first = is_first or answer == 2
  answers[#answers + 1] = answer > 0 and 1 or 0
  i = last_own + 1
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
"""Write hash and place of each job together unless it is live; answers 1 for each it wrote.

ARGV continue with the life of the wake key in seconds, the number of shared texts and those: the names and values every
hash gets. Then for each job its id, its place (a score, or which end of the list: 'front' or 'back'), the number of its
own texts and those: names and values that it has beside the shared ones. A job that becomes the earliest wakes a
dispatcher.
"""

LEASE = """
-- KEYS: scheduled set, list. ARGV: now, the lease's end (Unix seconds), the most to take.
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
"""Take the entries of the list and the due links, and put them into the scheduled set until the lease ends."""

NEXT_LOOK = """
-- KEYS: scheduled set, who looks first. ARGV: the name of who asks, how long it looks first (milliseconds), '1' to take
-- that from another.
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local first = redis.call('GET', KEYS[2])
local is_first = not first or first == ARGV[1] or ARGV[3] == '1'
if is_first then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
return {is_first and 1 or 0, head[2]}
"""
"""Return whether the caller is first, which it then stays for a while, and the earliest score if there is a link."""

RECORD_DATABASE_ID = """
-- KEYS: the key of the database's id, the flush marker of a pass. ARGV: the database's id.
if redis.call('DEL', KEYS[2]) == 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return 1
"""
"""Record the database's id unless another one is there; answers 0 when the flush marker is gone."""

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
"""Put a mark in front of the one that it follows, or into an empty list; answers 0 when another one is in front."""
