-- Those who wait are told who has ended. Who waits says so now and then: where nobody does, nothing is said.
local function tell_waiters(q, id)
  if q.waits == nil then q.waits = tonumber(redis.call('HGET', q.head, 'waits') or '0') end
  -- Not ``call``: an ACL may forbid the channel, and who waits looks by itself.
  if q.waits >= q.now_ms then redis.pcall('PUBLISH', q.channel, id) end
end
-- What became of a job is kept for those who ask, and told to those who wait.
local function keep_outcome(q, id, result, keep_ms, word, text)
  if keep_ms <= 0 or not result then return end
  redis.call('SET', result, word .. text, 'PX', keep_ms)
  tell_waiters(q, id)
end
local function bury(q, id, window, key, now_ms)
  redis.call('ZADD', q.dead, digits(now_ms), id)
  release_key(q, id, window, key, now_ms)
  tell_waiters(q, id)
end
-- It did not end: it waits again. ``R`` counts a try, ``X`` was the last one.
local function come_back(q, id, claim, verdict, number, text, now_ms)
  local record = redis.call('HGET', q.bodies, id)
  if not record then return end
  local _, priority, _, window, key = head_of(record)
  local tries, crashes, unseen, why = counts_of(redis.call('HGET', q.counts, id))
  if verdict == 'R' or verdict == 'X' then set_counts(q, id, tries + 1, crashes, unseen, text) end
  if verdict == 'P' then set_counts(q, id, tries, crashes, unseen, text) end
  if verdict == 'X' or verdict == 'P' then return bury(q, id, window, key, now_ms) end
  regain_key(q, id, window, key)
  if verdict == 'B' then -- handed back: to where it was
    make_ready(q, id, priority, tonumber(claim:match('^%d+ %d+ %d+ (%d+)') or '0'))
  else
    put(q, id, priority, now_ms + number, now_ms)
  end
end
-- Ends claims, each only by the epoch that stands in it. Five words each: id, epoch, verdict, number, text.
-- Verdicts: D done, C cancelled by itself (number: how long the outcome is kept), R try again and S snooze
-- (number: milliseconds), B handed back, X failed for good, P can't be read. Answers a letter each.
local function settle(q, acks, results, now_ms)
  if #acks == 0 then return '-' end
  local ids, said, stood, gone, counted = {}, {}, {}, {}, {}
  for i = 1, #acks, 5 do ids[#ids + 1] = acks[i] end
  local held = redis.call('HMGET', q.claims, unpack(ids))
  for i, id in ipairs(ids) do
    local epoch, verdict, number, text = acks[i * 5 - 3], acks[i * 5 - 2], acks[i * 5 - 1], acks[i * 5]
    number = tonumber(number)
    local claim = held[i]
    if claim and claim:match('^%d+') == epoch then
      said[i], stood[#stood + 1] = 'A', id
      tell_try(q, verdict, id, now_ms, claim)
      if verdict == 'D' or verdict == 'C' then
        gone[#gone + 1] = id
        local flag = claim:match(' (%a) %S+$')
        if flag == 'm' or flag == 'b' then counted[#counted + 1] = id end
        if flag == 'u' or flag == 'b' then
          local _, _, _, window, key = head_of(redis.call('HGET', q.bodies, id) or '')
          release_key(q, id, window, key, now_ms)
        end
        keep_outcome(q, id, results[i], number, verdict, text)
      else
        come_back(q, id, claim, verdict, number, text, now_ms)
      end
    else
      said[i] = 'S'
    end
  end
  if #stood > 0 then
    redis.call('HDEL', q.claims, unpack(stood))
    redis.call('ZREM', q.claimed, unpack(stood))
  end
  if #gone > 0 then
    redis.call('HDEL', q.bodies, unpack(gone))
  end
  if #counted > 0 then redis.call('HDEL', q.counts, unpack(counted)) end
  return table.concat(said)
end

