-- ack: remove from the journal exactly what was committed, and let a clean header expire again.
-- KEYS   opening {shard}:E, header {shard}:H:{item}, journal {shard}:P:{item}, due {shard}:Q,
--        since {shard}:D, tokens {shard}:G:{item}
-- ARGV   epoch, server, item, gone, claimed_ms, delay_ms, ttl_ms, max_age_ms, gone_ms,
--        user_and_version…
-- needs: opened, now
-- flags: allow-oom
-- resend: harmless, a second one finds its entries gone
-- ->     CLOSED epoch
-- ->     GONE                the item does not exist: tombstone written
-- ->     ACKED left fields   entries that came meanwhile; how many fields the header has now
local opening, header, journal, due, since, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local epoch, server, item, gone = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local claimed_ms, delay_ms = ARGV[5], ARGV[6]
local ttl_ms, max_age_ms, gone_ms = ARGV[7], ARGV[8], ARGV[9]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
-- A load that read SQL before this commit must not fill after it; loads of other users may.
redis.call('HDEL', tokens, '#')
for i = 10, #ARGV, 1000 do -- 500 users at once: three commands for all of them; unpack has no room for thousands
  local users, done = {}, {}
  for j = i, math.min(i + 998, #ARGV), 2 do users[#users + 1] = ARGV[j] end
  local stands = redis.call('HMGET', journal, unpack(users))
  for n, user in ipairs(users) do
    if stands[n] == ARGV[i + 2 * n - 1] then done[#done + 1] = user end
  end
  if #done > 0 then redis.call('HDEL', journal, unpack(done)) end
  redis.call('HDEL', tokens, unpack(users))
end
local left = redis.call('HLEN', journal)
if gone == '1' then redis.call('DEL', header, tokens) end
-- What came meanwhile is not for this commit to judge: the item may have been made anew.
if gone == '1' and left == 0 then
  redis.call('ZREM', due, item)
  redis.call('ZREM', since, item)
  redis.call('HSET', header, '#gone', 1, '#e', epoch)
  redis.call('PEXPIRE', header, gone_ms)
  return {'GONE'}
end
if left > 0 then
  redis.call('ZADD', due, now() + delay_ms, item)
  if claimed_ms ~= '' then redis.call('ZADD', since, 'XX', claimed_ms, item) end
  return {'ACKED', left, redis.call('HLEN', header)}
end
redis.call('ZREM', due, item)
redis.call('ZREM', since, item)
local known = redis.call('HMGET', header, '#e', '#born', '#gone')
if known[3] then return {'ACKED', 0, 0} end -- a tombstone keeps its own time
local young = known[2] and now() - known[2] < tonumber(max_age_ms)
if known[1] == epoch and young then redis.call('PEXPIRE', header, ttl_ms) else redis.call('DEL', header) end
return {'ACKED', 0, redis.call('HLEN', header)}
