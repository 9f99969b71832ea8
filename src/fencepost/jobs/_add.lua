-- When: ``+n`` is n milliseconds from now, by this clock; else a time of its own.
local function time_of(when, now_ms)
  local number = tonumber(when)
  if when:sub(1, 1) == '+' then return now_ms + number end
  return number
end
local function is_remembered(q, name, now_ms)
  local until_ms = redis.call('ZSCORE', q.remembered, name)
  return until_ms and tonumber(until_ms) > now_ms
end
-- What stands in the way of a job with a unique key: a letter and the holder's id, or nothing.
local function hindered(q, id, key, now_ms)
  local holder = redis.call('HGET', q.unique, key)
  if holder and holder ~= id and redis.call('HEXISTS', q.bodies, holder) == 1 then
    if redis.call('HEXISTS', q.claims, holder) == 1 then return 'R', holder end
    return 'K', holder
  end
  if is_remembered(q, 'k' .. key, now_ms) then return 'L', '' end
end
-- Adds one job: C created, K kept (it, or one with its key, is there), M moved, R one with its key is
-- running, L one has ended lately. Also answers whose id it is, and when it is due.
local function add_one(q, id, when, mode, remember_ms, record, result, now_ms)
  local due_ms = time_of(when, now_ms)
  -- What most heads are like is looked at closely, and costs less.
  local priority, window = record:match('^1 %d+ (%d) %d+ (%-) ')
  local key
  if window then
    priority = tonumber(priority)
  else
    local _
    _, priority, _, window, key = head_of(record)
  end
  if remember_ms ~= '0' and is_remembered(q, 'i' .. id, now_ms) then return 'K', id end
  -- Given where the reply to a first request was lost: it may have been added, run and ended since.
  if result and redis.call('EXISTS', result) == 1 then return 'K', id end
  if window ~= '-' then
    local letter, holder = hindered(q, id, key, now_ms)
    if letter == 'K' and mode == 'm' then
      redis.call('HSET', q.bodies, holder, record)
      redis.call('ZREM', q.ready, holder)
      redis.call('ZREM', q.due, holder)
      put(q, holder, priority, due_ms, now_ms)
      tell(q, 'A', holder, now_ms, digits(due_ms))
      return 'M', holder, due_ms
    end
    if letter then return letter, holder end
  end
  if redis.call('HSETNX', q.bodies, id, record) == 0 then return 'K', id end
  if window ~= '-' then redis.call('HSET', q.unique, key, id) end
  if remember_ms ~= '0' then
    local until_text = digits(now_ms + tonumber(remember_ms))
    redis.call('ZADD', q.remembered, until_text, 'i' .. id)
  end
  put(q, id, priority, due_ms, now_ms)
  tell(q, 'A', id, now_ms, digits(due_ms))
  return 'C', id, due_ms
end
-- Calls a worker if something is ready, or due so soon that one who sleeps would come late.
local function call_for(q, due_ms, now_ms, look_ms)
  if due_ms and due_ms < now_ms + look_ms then call_one(q) end
end

