-- count: how much waits, runs and was given up, and since when the longest waits.
-- KEYS   due {ns:jobs:queue}:d, ready :r, claimed :c, dead :x, head :q
-- ARGV
-- needs: clock
-- resend: harmless, it changes nothing
-- ->     ready due overdue running dead paused late_ms    due: not ready yet; overdue: of these, those whose
--        time has come; late_ms: of what is due and not begun
local due, ready, claimed, dead, head = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local _, now_ms = clock()
local late_ms = 0
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
if first then late_ms = math.max(late_ms, now_ms - math.floor(tonumber(first))) end
-- Of each priority the first: what is ready stands by priority, then by time.
for priority = 0, 9 do
  local from, to = digits(priority * 4398046511104), digits((priority + 1) * 4398046511104)
  first = redis.call('ZRANGEBYSCORE', ready, from, '(' .. to, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first then late_ms = math.max(late_ms, now_ms - tonumber(first) % 4398046511104) end
end
local overdue = redis.call('ZCOUNT', due, '-inf', digits(now_ms))
return {redis.call('ZCARD', ready), redis.call('ZCARD', due), overdue, redis.call('ZCARD', claimed),
  redis.call('ZCARD', dead), redis.call('HEXISTS', head, 'paused'), digits(late_ms)}
