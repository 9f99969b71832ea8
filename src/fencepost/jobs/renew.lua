-- renew: prolong claims that still stand, and say that their worker knows of them.
-- KEYS   claimed {ns:jobs:queue}:c, claims :e, known :k
-- ARGV   worker, turn, held…
-- needs: clock
-- flags: allow-oom
-- resend: harmless, they are prolonged from now
-- ->     said    a letter for each (id, epoch, lease_ms): R renewed, L lost
local claimed, claims, known = KEYS[1], KEYS[2], KEYS[3]
local worker, turn = ARGV[1], ARGV[2]

local _, now_ms = clock()
local said = {}
if tonumber(redis.call('HGET', known, worker) or '0') < tonumber(turn) then
  redis.call('HSET', known, worker, turn)
end
for i = 3, #ARGV, 3 do
  local id, epoch, lease_ms = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local claim = redis.call('HGET', claims, id)
  local stands = claim and claim:match('^%d+') == epoch
  -- Never to an earlier end than it has.
  if stands then redis.call('ZADD', claimed, 'XX', 'GT', digits(now_ms + lease_ms), id) end
  said[#said + 1] = stands and 'R' or 'L'
end
return table.concat(said)
