-- set: like or unlike one item for one user, if what is known here is enough to decide it.
-- KEYS   opening {shard}:E, header {shard}:H:{item}, journal {shard}:P:{item}, due {shard}:Q,
--        since {shard}:D
-- ARGV   epoch, server, item, user, want, delay_ms
-- needs: opened, now
-- ->     CLOSED epoch         the shard is not open at this epoch on this server
-- ->     GONE                 there is no such item
-- ->     COLD                 the count or the user's state is not known here: load, then again
-- ->     SAME count version   nothing to change; version is '' when nothing of the user is pending
-- ->     DONE count version   changed and in the journal
local opening, header, journal, due, since = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local epoch, server, item, user, want = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local delay_ms = ARGV[6]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
local known = redis.call('HMGET', header, '#e', '#n', '#full', '#gone', user)
if known[1] and known[1] ~= epoch then redis.call('DEL', header) return {'COLD'} end
if known[4] then return {'GONE'} end
local count, state = known[2], known[5] or (known[3] and '0')
if not count or not state then return {'COLD'} end
local waits = redis.call('ZSCORE', due, item)
if state == want then
  local pending = redis.call('HGET', journal, user)
  if pending and not waits then redis.call('ZADD', due, now() + delay_ms, item) end
  return {'SAME', tonumber(count), pending or ''}
end
count = count + (want == '1' and 1 or -1)
-- All that is written below is looked at first, once a dirty spell: a script that fails half-way is
-- not rolled back.
if not waits then redis.call('HLEN', journal) redis.call('ZSCORE', since, item) end
-- First of the writes, since the server may refuse it for want of memory: then nothing has changed.
local seq = redis.call('HINCRBY', opening, 's', 1)
local version = string.format('%s:%s.%.0f', want, epoch, seq)
redis.call('HSET', journal, user, version)
redis.call('HSET', header, user, want, '#n', count)
if not waits then -- it was clean: from here on until its ack
  local at = now()
  redis.call('ZADD', due, at + delay_ms, item)
  redis.call('ZADD', since, 'NX', at, item)
  -- A dirty item never expires: what is not yet in SQL must not be reloaded from there.
  redis.call('PERSIST', header)
end
return {'DONE', count, version}
