-- What happened to jobs, the last so many entries, where somebody wants them: a letter (A added; the verdict
-- of a try; L its worker was lost), the job and when; then when it is due, or of a claim its epoch, when it
-- was due and begun, and by whom.
local function tell(q, letter, id, now_ms, rest)
  if (q.told or 0) > 0 then redis.call('RPUSH', q.history, table.concat({letter, id, digits(now_ms), rest}, ' ')) end
end
local function tell_try(q, letter, id, now_ms, claim)
  if (q.told or 0) <= 0 then return end
  local epoch, _, since_ms, place_ms, _, worker = claim:match('^(%d+) (%d+) (%d+) (%d+) (%S) (%S+)$')
  tell(q, letter, id, now_ms, table.concat({epoch or '0', place_ms or '0', since_ms or '0', worker or '?'}, ' '))
end
local function trim(q)
  if (q.told or 0) > 0 then redis.call('LTRIM', q.history, -q.told, -1) end
end
