"""The Lua scripts: what must be atomic in Redis. One Redis, no cluster (RQ's own limit): keys are computed inside.

Shared by ARM and IS_LIVE: KEYS are the job's hash, the queue's scheduled set, the queue's list, the set of queues and
the wake list ('' for none). ARGV are the id, the score ('' puts it on the list), now and the oldest live start (RQ's
time texts, which sort), the prefix of job hashes, whether to push in front, whether to search the list when the order
of its entries cannot be trusted, the life of the wake key in seconds, and the hash's fields and values.
"""

from __future__ import annotations

_LIVENESS = """
local hash, scheduled, list, queues, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, score, now, started_after, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local front, exact = ARGV[6] == '1', ARGV[7] == '1'

-- The list is first in, first out: an entry older than its head was popped. Only where jobs are pushed in front
-- (exact) may that be wrong, and the list is searched.
local function is_on_list(enqueued_at)
  local head = redis.call('LINDEX', list, 0)
  if not head then return false end
  if head == id then return true end
  local head_at = redis.call('HGET', prefix .. head, 'enqueued_at')
  if head_at and enqueued_at and enqueued_at >= head_at then return true end
  return exact and redis.call('LPOS', list, id) ~= false
end

local function is_live()
  local has = redis.call('HMGET', hash, 'data', 'status', 'enqueued_at', 'started_at')
  if not has[1] then return false end
  if redis.call('ZSCORE', scheduled, id) then return true end
  if has[2] == 'queued' then return is_on_list(has[3]) end
  return has[2] == 'started' and has[4] and has[4] > started_after
end
"""

IS_LIVE = _LIVENESS + "return is_live() and 1 or 0\n"
"""Tell whether a job is live (design §3, "A live link")."""

ARM = (
    _LIVENESS
    + """
if is_live() then return 0 end

redis.call('DEL', hash)
redis.call('HSET', hash, unpack(ARGV, 9))
redis.call('SADD', queues, list)
local is_first = false
if score == '' then
  redis.call('HSET', hash, 'status', 'queued', 'enqueued_at', now)
  redis.call('ZREM', scheduled, id)
  redis.call(front and 'LPUSH' or 'RPUSH', list, id)
  is_first = true
else
  redis.call('HSET', hash, 'status', 'scheduled')
  local head = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  is_first = #head == 0 or tonumber(score) < tonumber(head[2])
  redis.call('ZADD', scheduled, score, id)
end
if is_first and wake ~= '' then
  redis.call('RPUSH', wake, '1')
  redis.call('LTRIM', wake, 0, 7)
  redis.call('EXPIRE', wake, ARGV[8])
end
return 1
"""
)
"""Write a job's hash and its place together unless it is live; returns 1 when it wrote.

A job that becomes the earliest wakes a dispatcher.
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
"""Take the list's entries and the due links at once, and put them back with the lease's end as their score."""
