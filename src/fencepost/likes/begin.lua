-- begin: start a load; what it reads may fill only while its token stands.
-- KEYS   opening {shard}:E, header {shard}:H:{item}, journal {shard}:P:{item}, due {shard}:Q,
--        tokens {shard}:G:{item}
-- ARGV   epoch, server, item, user, token, delay_ms, life_ms
-- needs: opened, identity, now
-- resend: harmless, a second one is given the token that stands
-- ->     CLOSED epoch
-- ->     GONE
-- ->     DIRTY               the header is lost and the journal is not empty: flush first
-- ->     TOKEN token field   field is '#' for the whole header, else the user
local opening, header, journal, due, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local epoch, server, item, user = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local token, delay_ms, life_ms = ARGV[5], ARGV[6], ARGV[7]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
if elsewhere(server) then return {'CLOSED', ''} end
local known = redis.call('HMGET', header, '#e', '#n', '#gone')
if known[1] and known[1] ~= epoch then redis.call('DEL', header) known = {} end
if known[3] then return {'GONE'} end
local field = user
if not known[2] then
  -- SQL does not have these changes yet: a load now would resurrect what they removed.
  if redis.call('HLEN', journal) > 0 then
    redis.call('ZADD', due, 'NX', now() + delay_ms, item)
    return {'DIRTY'}
  end
  field = '#'
end
redis.call('HSETNX', tokens, field, token)
redis.call('PEXPIRE', tokens, life_ms)
return {'TOKEN', redis.call('HGET', tokens, field), field}
