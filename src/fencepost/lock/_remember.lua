
-- Keep the last fence until so long after its use, less a 24th: its key's end is moved that seldom,
-- since to move it each time would cost a tenth of the script.
local function remember(fences, fence, overtaken, kept, now_ms, remember_ms)
  local ago_ms = now_ms - tonumber(kept or '0')
  if ago_ms >= 0 and ago_ms < remember_ms / 24 then
    redis.call('HSET', fences, 'last', fence, 'overtaken', overtaken)
  else
    redis.call('HSET', fences, 'last', fence, 'overtaken', overtaken, 'kept', now_ms)
    redis.call('PEXPIRE', fences, remember_ms)
  end
end
