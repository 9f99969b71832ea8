-- Take away what an old report says and add what the new one does; only what differs is written. '[0]' says
-- nothing. Under '' stands the sum of the floors.
local function fold(sure, writes, old, new)
  local calls, written, floor = {}, {}, 0
  for sign, report in pairs({[-1] = old, [1] = new}) do
    local rows = cjson.decode(report)
    floor = floor + sign * rows[1]
    for i = 2, #rows, 3 do
      local name = rows[i]
      calls[name] = (calls[name] or 0) + sign * rows[i + 1]
      written[name] = (written[name] or 0) + sign * rows[i + 2]
    end
  end
  redis.call('HINCRBY', writes, '', floor)
  for name, more in pairs(calls) do
    if more ~= 0 and tonumber(redis.call('ZINCRBY', sure, more, name)) <= 0 then
      redis.call('ZREM', sure, name)
      redis.call('HDEL', writes, name)
    elseif written[name] ~= 0 then
      redis.call('HINCRBY', writes, name, written[name])
    end
  end
end
