-- occur: add the jobs of a schedule's times, each once, and note up to when it has been looked at.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claims :e, unique :u, remembered :o, wake :t,
--        schedules :s, history :h
-- ARGV   schedule, since_ms, upto_ms, look_ms, remember_ms, keep_ms, told, times…
-- needs: clock, record, place, history, add
-- resend: harmless, the second one finds all of it done
-- ->     EARLY now_ms              upto_ms is ahead by this clock; nothing was done
-- ->     SEEN seen_ms now_ms said  up to when it was looked at before; said: a letter each time (id, at_ms,
--        record): H had before, C created, K one waits, R one runs, L its id is remembered, as add says
local bodies, due, ready, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unique, remembered, wake, schedules, history = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local schedule, since_ms, upto_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local look_ms, remember_ms, keep_ms, told = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

local q = {bodies = bodies, due = due, ready = ready, claims = claims, unique = unique, remembered = remembered,
  wake = wake, history = history, told = told}
local _, now_ms = clock()
-- Nothing comes early, whatever a scheduler's clock says, or this one said a moment ago.
if upto_ms > now_ms then return {'EARLY', now_ms} end
-- A schedule that nobody has seen begins now; one that the server has lost goes on where this scheduler was.
local seen_ms = tonumber(redis.call('ZSCORE', schedules, schedule) or (since_ms > 0 and since_ms or now_ms))
local said, first_ms = {}, nil
for i = 8, #ARGV, 3 do
  local id, at_ms, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local letter, due_ms = 'H', nil
  -- Who looked later has added it: ids are not remembered for ever, and this one may have been asleep.
  if tonumber(at_ms) > seen_ms then
    letter, _, due_ms = add_one(q, id, at_ms, 'k', remember_ms, record, nil, now_ms)
  end
  said[#said + 1] = letter
  if due_ms then first_ms = math.min(first_ms or due_ms, due_ms) end
end
redis.call('ZADD', schedules, digits(math.max(seen_ms, upto_ms)), schedule)
redis.call('ZREMRANGEBYSCORE', schedules, '-inf', digits(now_ms - keep_ms))
call_for(q, first_ms, now_ms, look_ms)
return {'SEEN', seen_ms, now_ms, table.concat(said)}
