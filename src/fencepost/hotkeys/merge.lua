-- merge: replace what one process said of its calls, and answer which keys are hot.
-- KEYS   sure {ns:hotkeys}:n, writes {ns:hotkeys}:w, reports {ns:hotkeys}:r, alive {ns:hotkeys}:a,
--        hot {ns:hotkeys}:h
-- ARGV   process, report, enter, leave, keep_ms, most
-- needs: now, fold, reap, heat
-- resend: harmless, a report takes the place of the last one of the same process
-- ->     {now_ms, processes, floor, name, sure, writes, since_ms, …}   since_ms 0: not hot. Of who
--        merges: those from leave on; process '' changes nothing, and hears of all
local sure, writes, reports, alive, hot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local process, report = ARGV[1], ARGV[2]
local enter, leave, keep_ms, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local now_ms, least = now(), '(0'
-- One of them was evicted: what the others hold can't be taken back any more.
local there = redis.call('EXISTS', sure, writes, reports, alive)
if there > 0 and there < 4 then redis.call('DEL', sure, writes, reports, alive) end
if process ~= '' then
  redis.call('ZADD', sure, 0, '')
  fold(sure, writes, redis.call('HGET', reports, process) or '[0]', report)
  redis.call('HSET', reports, process, report)
  redis.call('ZADD', alive, now_ms, process)
  reap(sure, writes, reports, alive, now_ms - keep_ms)
  heat(sure, hot, enter, leave, now_ms, most)
  least = math.max(leave, 1)
  for _, key in ipairs({sure, writes, reports, alive, hot}) do redis.call('PEXPIRE', key, keep_ms * 4) end
end
local found = {now_ms, redis.call('ZCARD', alive), tonumber(redis.call('HGET', writes, '') or 0)}
-- Who merges hears of what may be hot; who looks, of all.
local top = redis.call('ZREVRANGEBYSCORE', sure, '+inf', least, 'WITHSCORES', 'LIMIT', 0, most)
local names = {}
for i = 1, #top, 2 do names[#names + 1] = top[i] end
if #names == 0 then return found end
local written, since = redis.call('HMGET', writes, unpack(names)), redis.call('HMGET', hot, unpack(names))
for i, name in ipairs(names) do
  for _, word in ipairs({name, tonumber(top[2 * i]), tonumber(written[i] or 0), tonumber(since[i] or 0)}) do
    found[#found + 1] = word
  end
end
return found
