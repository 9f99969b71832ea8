-- The server's time in microseconds and in whole milliseconds: the only clock that decides anything.
local function clock()
  local time = redis.call('TIME')
  local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return us, math.floor(us / 1000)
end
local function digits(number) return string.format('%.0f', number) end

