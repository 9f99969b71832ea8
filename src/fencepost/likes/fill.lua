-- fill: write what a load read, where its token still stands; what is known is never overwritten.
-- KEYS   opening {shard}:E, header {shard}:H:{item}, journal {shard}:P:{item}, tokens {shard}:G:{item}
-- ARGV   epoch, server, token, field, count, full, ttl_ms, gone_ms, user_and_state…
-- needs: opened, now
-- resend: harmless, a second one finds everything known
-- ->     CLOSED epoch   epoch is that of the snapshot: an older snapshot fills nothing
-- ->     REFUSED        the token was withdrawn: a flush or an invalidation came between
-- ->     DIRTY
-- ->     GONE           count was '': the item does not exist
-- ->     FILLED fields   how many fields the header has now
local opening, header, journal, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, server, token, field = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local count, full, ttl_ms, gone_ms = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
if redis.call('HGET', tokens, field) ~= token then return {'REFUSED'} end
local known = redis.call('HMGET', header, '#e', '#n', '#gone')
if known[1] and known[1] ~= epoch then redis.call('DEL', header) known = {} end
if known[3] then return {'GONE'} end
local clean = redis.call('HLEN', journal) == 0
if count == '' then
  if not clean then return {'DIRTY'} end -- the flush will find the item gone
  if known[2] and field == '#' then return {'REFUSED'} end -- somebody has seen it since
  redis.call('DEL', header, tokens)
  redis.call('HSET', header, '#gone', 1, '#e', epoch)
  redis.call('PEXPIRE', header, gone_ms)
  return {'GONE'}
end
if not known[2] then
  if not clean then return {'DIRTY'} end
  if field ~= '#' then return {'REFUSED'} end -- a pair must not make a header: its count is of another time
  redis.call('HSET', header, '#e', epoch, '#n', count, '#born', now())
  redis.call('PEXPIRE', header, ttl_ms)
end
for i = 9, #ARGV, 2 do redis.call('HSETNX', header, ARGV[i], ARGV[i + 1]) end
if full == '1' and field == '#' then redis.call('HSET', header, '#full', 1) end
return {'FILLED', redis.call('HLEN', header)}
