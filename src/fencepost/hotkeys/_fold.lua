-- Add what a report says (sign 1), or take it away again (sign -1). Under '' stands the sum of the floors.
local function fold(sure, writes, report, sign)
  local rows = cjson.decode(report)
  redis.call('HINCRBY', writes, '', sign * rows[1] + 0)  -- and no -0
  for i = 2, #rows, 3 do
    local name, calls, written = rows[i], rows[i + 1], rows[i + 2]
    if tonumber(redis.call('ZINCRBY', sure, sign * calls, name)) <= 0 then
      redis.call('ZREM', sure, name)
      redis.call('HDEL', writes, name)
    elseif written > 0 then
      redis.call('HINCRBY', writes, name, sign * written)
    end
  end
end
