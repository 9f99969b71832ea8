-- due: which items are due for a flush, by the server's clock.
-- KEYS   due {shard}:Q
-- ARGV   limit, longest_ms
-- needs: now
-- resend: harmless, it changes nothing
-- ->     wait_ms item…   wait_ms until the next item is due, -1 when none is waiting
local due = KEYS[1]
local limit, longest_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local at = now()
local items = redis.call('ZRANGEBYSCORE', due, '-inf', at, 'LIMIT', 0, limit)
if #items < limit then
  -- Nobody sets a time that far ahead: the clock was set back since, and they are late, not early.
  local ahead = string.format('(%.0f', at + longest_ms)
  local late = redis.call('ZRANGEBYSCORE', due, ahead, '+inf', 'LIMIT', 0, limit - #items)
  for i = 1, #late do items[#items + 1] = late[i] end
end
local later = redis.call('ZRANGEBYSCORE', due, string.format('(%.0f', at), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local wait_ms = later[2] and later[2] - at or -1
table.insert(items, 1, wait_ms) -- not unpack: Lua's stack ends at 8000
return items
