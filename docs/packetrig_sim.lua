-- Shows SIM, packetrig's summaries of packets (docs/book/flow-export.md), on UDP port 4738; another one by "Decode as".

local sim = Proto("packetrig_sim", "packetrig summaries of packets")
local tunnels = { [0] = "none", [1] = "IP in IP", [2] = "GRE", [3] = "VXLAN", [4] = "GTP-U" }
local fields = {
    version = ProtoField.uint8("packetrig_sim.version", "Version"),
    length = ProtoField.uint16("packetrig_sim.length", "Length"),
    items = ProtoField.uint16("packetrig_sim.items", "Items"),
    exporter = ProtoField.uint32("packetrig_sim.exporter", "Exporter"),
    datagram = ProtoField.uint32("packetrig_sim.datagram", "Datagram sequence"),
    event = ProtoField.uint64("packetrig_sim.event", "Event sequence"),
    base = ProtoField.uint64("packetrig_sim.base", "Base time (ns)"),
    kind = ProtoField.uint8("packetrig_sim.kind", "Kind"),
    bytes = ProtoField.uint32("packetrig_sim.bytes", "Bytes of IP"),
    flow = ProtoField.uint64("packetrig_sim.flow", "Flow"),
    time = ProtoField.uint64("packetrig_sim.time", "Time (ns)"),
    protocol = ProtoField.uint8("packetrig_sim.protocol", "Protocol"),
    tunnel = ProtoField.uint8("packetrig_sim.tunnel", "Tunnel", base.DEC, tunnels),
    vlan = ProtoField.uint16("packetrig_sim.vlan", "VLAN"),
    inner_vlan = ProtoField.uint16("packetrig_sim.inner_vlan", "Inner VLAN"),
    tunnel_id = ProtoField.uint32("packetrig_sim.tunnel_id", "Tunnel identifier"),
    source_port = ProtoField.uint16("packetrig_sim.source_port", "Source port"),
    destination_port = ProtoField.uint16("packetrig_sim.destination_port", "Destination port"),
    source4 = ProtoField.ipv4("packetrig_sim.source4", "Source"),
    destination4 = ProtoField.ipv4("packetrig_sim.destination4", "Destination"),
    source6 = ProtoField.ipv6("packetrig_sim.source6", "Source"),
    destination6 = ProtoField.ipv6("packetrig_sim.destination6", "Destination"),
    account = ProtoField.uint64("packetrig_sim.account", "Account"),
    undecoded = ProtoField.bytes("packetrig_sim.undecoded", "Not understood"),
}
sim.fields = fields

local HEADER = 32
local NAMES = { "Packet", "Packet", "New flow", "New flow", "Ledger" }

local function packet(at, tree, base)
    tree:add(fields.bytes, at(1, 3))
    local delta = at(4, 4):int()
    -- Its sign is carried into the upper half; sums wrap around.
    tree:add(fields.time, at(4, 4), base + UInt64(delta % 0x100000000, delta < 0 and 0xffffffff or 0))
    tree:add(fields.flow, at(8, 8))
end

local function long_packet(at, tree)
    tree:add(fields.bytes, at(4, 4))
    tree:add(fields.time, at(8, 8))
    tree:add(fields.flow, at(16, 8))
end

local function flow(at, tree, length, source, destination)
    tree:add(fields.protocol, at(1, 1))
    tree:add(fields.tunnel, at(2, 1))
    tree:add(fields.vlan, at(4, 2))
    tree:add(fields.inner_vlan, at(6, 2))
    tree:add(fields.tunnel_id, at(8, 4))
    tree:add(fields.source_port, at(12, 2))
    tree:add(fields.destination_port, at(14, 2))
    tree:add(fields.flow, at(16, 8))
    tree:add(fields.time, at(24, 8))
    tree:add(source, at(32, length))
    tree:add(destination, at(32 + length, length))
end

local function ledger(at, tree)
    for offset = 16, at:len() - 8, 8 do tree:add(fields.account, at(offset, 8)) end
end

-- How long an item is, by its first bytes; nil: of no known kind.
local function length_of(at)
    local kind = at(0, 1):uint()
    if kind == 5 and at:len() >= 4 then return 16 + 8 * at(2, 2):uint() end
    return ({ 16, 24, 40, 64 })[kind]
end

local function item(at, tree, base)
    local kind = at(0, 1):uint()
    local branch = tree:add(sim, at, NAMES[kind])
    branch:add(fields.kind, at(0, 1))
    if kind == 1 then packet(at, branch, base)
    elseif kind == 2 then long_packet(at, branch)
    elseif kind == 3 then flow(at, branch, 4, fields.source4, fields.destination4)
    elseif kind == 4 then flow(at, branch, 16, fields.source6, fields.destination6)
    else ledger(at, branch) end
end

function sim.dissector(tvb, pinfo, tree)
    if tvb:len() < HEADER or tvb(0, 3):string() ~= "SIM" or tvb(3, 1):uint() ~= 1 then return 0 end
    pinfo.cols.protocol = "SIM"
    local branch = tree:add(sim, tvb())
    branch:add(fields.version, tvb(3, 1))
    branch:add(fields.length, tvb(4, 2))
    branch:add(fields.items, tvb(6, 2))
    branch:add(fields.exporter, tvb(8, 4))
    branch:add(fields.datagram, tvb(12, 4))
    branch:add(fields.event, tvb(16, 8))
    branch:add(fields.base, tvb(24, 8))
    local items, base, at = tvb(6, 2):uint(), tvb(24, 8):uint64(), HEADER
    for _ = 1, items do
        local length = at < tvb:len() and length_of(tvb(at))
        if not length or at + length > tvb:len() then break end
        item(tvb(at, length), branch, base)
        at = at + length
    end
    if at < tvb:len() then branch:add(fields.undecoded, tvb(at)) end
    pinfo.cols.info = string.format("%d items, exporter %d, datagram %d", items, tvb(8, 4):uint(), tvb(12, 4):uint())
    return tvb:len()
end

DissectorTable.get("udp.port"):add(4738, sim)
