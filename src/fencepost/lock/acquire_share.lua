-- acquire_share: take a share if there is room and nobody's turn comes first, and draw the next fence.
-- KEYS   shares {ns:kind:name}:l, fences {ns:kind:name}:f, queue {ns:kind:name}:q,
--        alive {ns:kind:name}:a, ended {ns:kind:name}:x:attempt, ends {ns:kind:name}:e
-- ARGV   attempt, owner, ttl_ms, floor, overtakes, stay_ms, remember_ms, weight, permits, rank, channel
-- needs: whole, first, stay, counted, take_out, reap, prolong, passing, remember,
--        call_next, enter, listed
-- ->     TAKEN fence                     greater than every fence drawn before; again for a repeat
-- ->     HELD left_ms owner fence ahead  no room beside who is in, the first to end named; or it is kept
--        free for who waits longer
-- ->     ENDED                           this attempt was given up before this request came
local shares, fences, queue, alive, ended, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local attempt, owner, ttl_ms, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local overtakes, stay_ms, remember_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local weight, permits, rank, channel = ARGV[8], ARGV[9], tonumber(ARGV[10]), ARGV[11]

if not (whole(ttl_ms) and whole(weight) and whole(permits)) then
  return redis.error_reply('ERR ttl_ms, weight and permits are positive whole numbers')
end
-- A duplicate that was long on its way would take a share for nobody.
if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end
local head, silent_ms, now_ms = first(queue, alive)
reap(shares, ends, now_ms)
local held = redis.call('HMGET', shares, attempt, '#used', '#bounds')
if held[1] then -- the same attempt is the same request
  prolong(shares, ends, attempt, now_ms, ttl_ms)
  return {'TAKEN', held[1]:match('^%d+ %d+ (%d+)')}
end
-- It must fit for everybody who is in, too: each of them may count on its own number of permits.
local bounds, room = held[3] or '', tonumber(permits)
for asked in bounds:gmatch('(%d+)=') do room = math.min(room, tonumber(asked)) end
local used = tonumber(held[2] or '0') + tonumber(weight)
local mark = redis.call('HMGET', fences, 'last', 'overtaken', 'kept')
local overtaken = passing(queue, head, attempt, rank, mark[2])
if used <= room and overtaken <= overtakes then
  -- The clock carries the fence over a server that comes back empty, the counter over a clock that steps back.
  local fence = math.max(tonumber(mark[1] or '0') + 1, now_ms * 1000, tonumber(floor))
  local text = string.format('%.0f', fence)
  local share = table.concat({weight, permits, text, string.format('%.0f', now_ms), owner}, ' ')
  redis.call('HSET', shares, attempt, share, '#used', used, '#bounds', counted(bounds, permits, 1))
  prolong(shares, ends, attempt, now_ms, ttl_ms)
  remember(fences, text, overtaken, mark[3], now_ms, remember_ms)
  if head then enter(queue, alive, attempt, channel, used < room) end
  return {'TAKEN', text}
end
if stay_ms > 0 then stay(queue, alive, attempt, now_ms, stay_ms, rank) end
local ahead = redis.call('ZRANK', queue, attempt) or redis.call('ZCARD', queue)
if used <= room then return {'HELD', silent_ms, '', '0', ahead} end
local soonest = listed(shares, ends, now_ms, '', 1)[1]
return {'HELD', soonest[4], soonest[1], soonest[2], ahead}
