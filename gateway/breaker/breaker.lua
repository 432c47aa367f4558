-- core.py's law inside Valkey; the docstring there says what it means, and tests run both side by side.
-- KEYS: one record (a JSON string) a deployment; only `read` takes several.
-- ARGV: op, settings (JSON), clock ("" = the server's; tests pass milliseconds), channel, then per op:
--   report   deployment epoch succeeded failed trailing draw
--   claim    deployment token
--   hasten   deployment
--   settle   deployment token passed(0/1) draw
--   restore  deployment state epoch opens open_for_ms closed_for_ms
--   read     (nothing)
-- Answers: {counted(0/1), state, epoch, opens, open_for_ms, closed_for_ms}; `read` a list of these without `counted`.

local op, settings, channel = ARGV[1], cjson.decode(ARGV[2]), ARGV[4]
local WINDOW_S, DRAW_SCALE, MAX_DOUBLINGS = 10, 1000, 16
local RAMP_PERCENT = { 10, 50 }

local function server_now()
  if ARGV[3] ~= '' then return tonumber(ARGV[3]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function empty_window()
  local window = {}
  for i = 1, WINDOW_S do window[i] = { 0, 0, 0 } end
  return window
end

local function load(key)
  local text = redis.call('GET', key)
  if text then return cjson.decode(text) end
  return { state = 'closed', epoch = 0, now = 0, open_until = 0, opens = 0, closed_at = 0, consecutive = 0,
           probe_token = '', probe_until = 0, passes = 0, window = empty_window() }
end

local function spans(record, now)
  now = math.max(now, record.now)
  local open_for, closed_for = 0, 0
  if record.state == 'open' then open_for = math.max(0, record.open_until - now)
  elseif record.state == 'half_open' then open_for = math.max(0, record.probe_until - now)
  else closed_for = now - record.closed_at end
  return { record.state, record.epoch, record.opens, open_for, closed_for }
end

local function ramping(record)
  return record.epoch > 0 and record.now - record.closed_at < settings.ramp_step_ms * #RAMP_PERCENT
end

local function trips(record)
  local needed = settings.trip_consecutive
  if ramping(record) then needed = settings.ramp_trip_consecutive end
  if record.consecutive >= needed then return true end
  local oldest = math.floor(record.now / 1000) - WINDOW_S + 1
  local failed, total = 0, 0
  for _, bucket in ipairs(record.window) do
    if bucket[1] >= oldest then
      failed = failed + bucket[3]
      total = total + bucket[2] + bucket[3]
    end
  end
  return total >= settings.trip_volume and failed * 100 >= settings.trip_percent * total
end

local function cooldown(opens, draw)
  local base = math.min(settings.cooldown_ms * 2 ^ math.min(opens - 1, MAX_DOUBLINGS), settings.cooldown_max_ms)
  local low = math.floor(base * (100 - settings.jitter_percent) / 100)
  return low + math.floor(base * 2 * settings.jitter_percent * draw / (100 * DRAW_SCALE))
end

local function open(record, draw)
  local forgiven = record.state == 'closed' and record.now - record.closed_at >= settings.forgive_ms
  record.opens = forgiven and 1 or record.opens + 1
  record.state = 'open'
  record.epoch = record.epoch + 1
  record.open_until = math.max(record.open_until, record.now + cooldown(record.opens, draw))
  record.consecutive, record.passes, record.probe_token, record.probe_until = 0, 0, '', 0
  record.window = empty_window()
end

local now = server_now()

if op == 'read' then
  local answers = {}
  for i, key in ipairs(KEYS) do answers[i] = spans(load(key), now) end
  return answers
end

local record = load(KEYS[1])
local before = record.epoch
local counted = 0
record.now = math.max(now, record.now)

if op == 'report' then
  local succeeded, failed, trailing = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
  if tonumber(ARGV[6]) == record.epoch and record.state == 'closed' then
    counted = 1
    local second = math.floor(record.now / 1000)
    local index = second % WINDOW_S + 1
    local bucket = record.window[index]
    if bucket[1] ~= second then bucket = { second, 0, 0 } end
    record.window[index] = { second, bucket[2] + succeeded, bucket[3] + failed }
    if succeeded > 0 then record.consecutive = trailing else record.consecutive = record.consecutive + failed end
    if failed > 0 and trips(record) then open(record, tonumber(ARGV[10])) end
  end
elseif op == 'claim' then
  if record.state == 'open' and record.now >= record.open_until then
    record.state, record.epoch, record.passes, counted = 'half_open', record.epoch + 1, 0, 1
  elseif record.state == 'half_open' and (record.probe_token == '' or record.now >= record.probe_until) then
    counted = 1
  end
  if counted == 1 then
    record.probe_token, record.probe_until = ARGV[6], record.now + settings.probe_hold_ms
  end
elseif op == 'hasten' then
  if record.state == 'open' and record.open_until > record.now then
    record.open_until, counted = record.now, 1
  end
elseif op == 'settle' then
  if record.state == 'half_open' and ARGV[6] == record.probe_token then
    counted = 1
    if ARGV[7] == '1' then
      record.probe_token, record.probe_until, record.passes = '', 0, record.passes + 1
      if record.passes >= settings.probe_passes then
        record.state, record.epoch, record.closed_at = 'closed', record.epoch + 1, record.now
        record.consecutive, record.window = 0, empty_window()
      end
    else
      open(record, tonumber(ARGV[8]))
    end
  end
elseif op == 'restore' then
  local epoch = tonumber(ARGV[7])
  if epoch > record.epoch then
    counted = 1
    local state = ARGV[6]
    record = { state = state, epoch = epoch, now = record.now, opens = tonumber(ARGV[8]), open_until = 0,
               closed_at = 0, consecutive = 0, probe_token = '', probe_until = 0, passes = 0,
               window = empty_window() }
    if state == 'open' then record.open_until = record.now + tonumber(ARGV[9]) end
    if state == 'closed' then record.closed_at = record.now - tonumber(ARGV[10]) end
  end
else
  return redis.error_reply('unknown op ' .. op)
end

redis.call('SET', KEYS[1], cjson.encode(record))
-- A push makes the others read at once; it carries no state, so a lost, late or doubled one does no harm.
if record.epoch ~= before then redis.call('PUBLISH', channel, ARGV[5]) end
local answer = spans(record, now)
table.insert(answer, 1, counted)
return answer
