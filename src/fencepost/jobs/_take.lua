-- Takes what is ready, each job under an epoch of its own. The epoch is the queue's, never the job's: an
-- id that is used again, or a queue that was lost, must never draw one that was drawn before.
local function take(q, worker, turn, room, now_us, now_ms)
  if room <= 0 then return {}, '', 0 end
  local popped = redis.call('ZPOPMIN', q.ready, room)
  if #popped == 0 then return {}, '', 0 end
  local ids, taken, claims, leases, kept = {}, {}, {}, {}, {}
  local places, late_ms, at, t = {}, 0, 0, 0
  for i = 1, #popped, 2 do
    ids[#ids + 1] = popped[i]
    local place_ms = tonumber(popped[i + 1]) % 4398046511104
    places[#ids], late_ms = place_ms, late_ms + math.max(now_ms - place_ms, 0)
  end
  local records = redis.call('HMGET', q.bodies, unpack(ids))
  local counts = redis.call('HMGET', q.counts, unpack(ids))
  local epoch = math.max(tonumber(redis.call('HGET', q.head, 'epoch') or '0') + 1, now_us)
  -- Of a claim: its epoch, the turn, when it began, its place, a letter (u: it holds a key, m: something is
  -- counted against it, b: both), its worker.
  local form = table.concat({'%.0f', turn, digits(now_ms), '%.0f', '%s', (worker:gsub('%%', '%%%%'))}, ' ')
  for i, id in ipairs(ids) do
    local record = records[i]
    if record then
      -- What most heads are like is looked at closely, and costs a third.
      local lease_ms, window, key = record:match('^1 (%d+) %d %d+ (%-) ')
      if not window then
        local _
        lease_ms, _, _, window, key = head_of(record)
      end
      local flag = '-'
      if window == 'p' then release_key(q, id, window, key, now_ms) elseif window ~= '-' then flag = 'u' end
      if counts[i] then flag = flag == 'u' and 'b' or 'm' end
      local text = digits(epoch)
      claims[at + 1], claims[at + 2] = id, string.format(form, epoch, places[i], flag)
      leases[at + 1], leases[at + 2] = now_ms + lease_ms, id
      kept[at + 1], kept[at + 2] = id, text
      taken[t + 1], taken[t + 2], taken[t + 3], taken[t + 4] = id, text, counts[i] or '', record
      at, t, epoch = at + 2, t + 4, epoch + 1
    end
  end
  if #claims > 0 then
    redis.call('HSET', q.claims, unpack(claims))
    redis.call('ZADD', q.claimed, unpack(leases))
    redis.call('HSET', q.head, 'epoch', digits(epoch - 1))
  end
  return taken, table.concat(kept, ' '), late_ms
end
-- The same claims once more, as far as they still stand: the reply to the turn was lost.
local function take_again(q, kept)
  local taken = {}
  for id, epoch in kept:gmatch('(%S+) (%S+)') do
    local claim, record = redis.call('HGET', q.claims, id), redis.call('HGET', q.bodies, id)
    if claim and record and claim:match('^%d+') == epoch then
      local t = #taken
      taken[t + 1], taken[t + 2], taken[t + 3] = id, epoch, redis.call('HGET', q.counts, id) or ''
      taken[t + 4] = record
    end
  end
  return taken
end

