-- evict: drop some users' clean states of an item, to bound its memory.
-- KEYS   header {shard}:H:{item}, journal {shard}:P:{item}
-- ARGV   user…
-- flags: allow-oom
-- resend: harmless, they are gone
-- ->     EVICTED count
local header, journal = KEYS[1], KEYS[2]

-- In the same script: without a state, a header that is full would say "no" for a user who likes.
redis.call('HDEL', header, '#full')
local count = 0
for i = 1, #ARGV do
  -- What is not in SQL yet stays, and fields that begin with '#' are the header's own.
  if ARGV[i]:sub(1, 1) ~= '#' and redis.call('HEXISTS', journal, ARGV[i]) == 0 then
    count = count + redis.call('HDEL', header, ARGV[i])
  end
end
return {'EVICTED', count}
