-- turn: end what has ended, make ready what is due, take back what is lost, and take what fits.
-- KEYS   bodies {ns:jobs:queue}:b, due :d, ready :r, claimed :c, claims :e, counts :m, head :q, workers :w,
--        known :k, alive :l, unique :u, remembered :o, dead :x, wake :t, history :h, results …:R:id…
-- ARGV   worker, turn, room, limit, most, look_ms, keep_ms, channel, told, acks…
-- needs: clock, record, place, history, unique, settle, promote, reclaim, take, next
-- flags: allow-oom
-- resend: harmless, the same turn of the same worker is answered alike
-- ->     TURN said wait_us reclaimed late_ms claims…   said: a letter an ack (A applied, S stale); wait_us: until
--        something is due, -1 if nothing is known; late_ms: of all that was taken; a claim: id, epoch, counts, record
-- ->     LATE                  a later turn of this worker was here before; nothing was done
local bodies, due, ready, claimed, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local counts, head, workers, known, alive = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local unique, remembered, dead, wake, history = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local worker, turn, room, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local most, look_ms, keep_ms, channel = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local told = tonumber(ARGV[9])

local q = {bodies = bodies, due = due, ready = ready, claimed = claimed, claims = claims, counts = counts, head = head,
  workers = workers, known = known, alive = alive, unique = unique, remembered = remembered, dead = dead, wake = wake,
  channel = channel, history = history, told = told}
local now_us, now_ms = clock()
q.now_ms, q.worker, q.turn = now_ms, worker, turn
local number, said, kept = (redis.call('HGET', workers, worker) or '0 - '):match('^(%d+) (%S+) (.*)$')
if tonumber(turn) < tonumber(number) then return {'LATE'} end
-- Before all else: a repeated turn must not end, count or take anything twice.
if turn == number then return {'TURN', said, next_us(q, now_us), 0, 0, unpack(take_again(q, kept))} end
local acks, results = {}, {}
for i = 10, #ARGV do acks[i - 9] = ARGV[i] end
for i = 16, #KEYS do results[i - 15] = KEYS[i] end
-- Acks go before taking back: one that comes in the turn that would take its job back has won.
said = settle(q, acks, results, now_ms)
promote(q, now_ms, room > 0 and most or 0)
local reclaimed = reclaim(q, now_ms, most)
local taken, late_ms
taken, kept, late_ms = take(q, worker, turn, math.min(room, open_for(q, limit)), now_us, now_ms)
redis.call('HSET', workers, worker, table.concat({turn, said, kept}, ' '))
redis.call('ZADD', alive, digits(now_ms), worker)
local wait_us = -1
-- Where nothing may be taken, nobody is called: whoever ends a job there takes the next.
if open_for(q, limit) > 0 then
  wait_us = next_us(q, now_us)
  chain(q, room - #taken / 4, wait_us, look_ms)
end
forget(q, now_ms, keep_ms)
trim(q)
return {'TURN', said, wait_us, reclaimed, late_ms, unpack(taken)}
