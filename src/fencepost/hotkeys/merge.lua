-- merge: replace what one process said of its calls, and answer which keys are hottest.
-- KEYS   sure {ns:hotkeys}:n, writes {ns:hotkeys}:w, reports {ns:hotkeys}:r, alive {ns:hotkeys}:a,
--        hot {ns:hotkeys}:h
-- ARGV   process, report, enter, leave, keep_ms, most
-- needs: now, fold, reap, heat
-- resend: harmless, a report takes the place of the last one of the same process
-- ->     {now_ms, processes, floor, name, sure, writes, since_ms, …}   since_ms 0: not hot
local sure, writes, reports, alive, hot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local process, report = ARGV[1], ARGV[2]
local enter, leave, keep_ms, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local now_ms = now()
-- One of them was evicted: what the others hold can't be taken back any more.
local there = redis.call('EXISTS', sure, writes, reports, alive)
if there > 0 and there < 4 then redis.call('DEL', sure, writes, reports, alive) end
if process ~= '' then
  local before = redis.call('HGET', reports, process)
  if before then fold(sure, writes, before, -1) end
  redis.call('ZADD', sure, 0, '')
  fold(sure, writes, report, 1)
  redis.call('HSET', reports, process, report)
  redis.call('ZADD', alive, now_ms, process)
  reap(sure, writes, reports, alive, now_ms - keep_ms)
  heat(sure, hot, enter, leave, now_ms, most)
  for _, key in ipairs({sure, writes, reports, alive, hot}) do redis.call('PEXPIRE', key, keep_ms * 4) end
end
local found = {now_ms, redis.call('ZCARD', alive), tonumber(redis.call('HGET', writes, '') or 0)}
local top = redis.call('ZREVRANGEBYSCORE', sure, '+inf', '(0', 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #top, 2 do
  found[#found + 1] = top[i]
  found[#found + 1] = tonumber(top[i + 1])
  found[#found + 1] = tonumber(redis.call('HGET', writes, top[i]) or 0)
  found[#found + 1] = tonumber(redis.call('HGET', hot, top[i]) or 0)
end
return found
