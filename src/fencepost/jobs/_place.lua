-- Where a job waits: ready by priority, then by time; due by time, the priority in the fraction.
local function make_ready(q, id, priority, since_ms)
  redis.call('ZADD', q.ready, digits(priority * 4398046511104 + since_ms), id)
end
local function make_due(q, id, priority, due_ms)
  redis.call('ZADD', q.due, string.format('%.4f', due_ms + priority / 16), id)
end
-- Never before its time, not by a millisecond.
local function put(q, id, priority, due_ms, now_ms)
  if due_ms <= now_ms then make_ready(q, id, priority, due_ms) else make_due(q, id, priority, due_ms) end
end
-- One token at most: it calls one worker, and whoever leaves work behind calls the next.
local function call_one(q)
  if redis.call('EXISTS', q.wake) == 0 then redis.call('RPUSH', q.wake, '1') end
end

