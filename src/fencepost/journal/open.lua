-- open: write a shard's opening record, unless somebody wrote another since it was looked at.
-- KEYS   opening {shard}:E
-- ARGV   seen, epoch, server
-- needs: identity
-- flags: allow-oom
-- resend: harmless, a second one finds its own epoch and answers OTHER
-- ->     OPEN
-- ->     OTHER epoch   not what was seen: look again
local opening = KEYS[1]
local seen, epoch, server = ARGV[1], ARGV[2], ARGV[3]

local current = redis.call('HGET', opening, 'e') or ''
if current ~= seen or elsewhere(server) then return {'OTHER', current} end
redis.call('HSET', opening, 'e', epoch, 'f', 0, 's', 0, 'id', server)
return {'OPEN'}
