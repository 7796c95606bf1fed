//! Faults, and their times.

use crate::fleet::{Fleet, Happening};
use crate::world::MS;
use packetrig_fleet::agent::AgentEvent;
use packetrig_fleet::controller::{ControllerEvent, ControllerMachine, RunRecord};

impl Fleet {
    pub(crate) fn spread_trouble(&mut self) {
        let world = self.world.clone();
        for (node, at, restart) in world.crashes {
            self.at(at * MS, Happening::Crash(node, restart.map(|ms| ms * MS)));
        }
        for (node, from, to) in world.freezes {
            self.at(from * MS, Happening::Freeze(node, (to - from) * MS));
        }
        for (node, from, to, deaf, mute) in world.cuts {
            self.at(from * MS, Happening::Cut(node, true, deaf, mute));
            self.at(to * MS, Happening::Cut(node, false, deaf, mute));
        }
        if let Some((at, next)) = world.controller_dies {
            self.at(at * MS, Happening::ControllerDies);
            self.at(next * MS, Happening::ControllerBegins);
        }
        if let Some((from, to)) = world.controller_frozen {
            self.at(from * MS, Happening::ControllerFreezes((to - from) * MS));
            self.at(from * MS + 15_000 * MS, Happening::ControllerBegins);
        }
        if let Some(at) = world.stop_at {
            self.at(at * MS, Happening::Stop);
        }
    }

    pub(crate) fn trouble(&mut self, what: Happening) {
        match what {
            Happening::Crash(node, restart) if self.nodes[node].alive => {
                self.nodes[node].crash(self.now);
                self.held.retain(|(held, _)| *held != node);
                if let Some(after) = restart {
                    self.at(self.now + after, Happening::Restart(node));
                }
            }
            Happening::Restart(node) => {
                self.nodes[node].restart();
                for second in 0..5 {
                    let copy = self.now + second * 1000 * MS;
                    if self.nodes[node].mute == 0 {
                        self.at(copy, Happening::Restarted(node));
                    }
                }
                self.at(self.now, Happening::UploadDue(node));
            }
            Happening::Freeze(node, length)
                if self.nodes[node].alive && self.nodes[node].frozen.is_none() =>
            {
                self.nodes[node].settle(self.now);
                self.nodes[node].frozen = Some(self.now);
                self.at(self.now + length, Happening::Thaw(node));
            }
            Happening::Thaw(node) => self.thaw(node),
            Happening::Cut(node, begins, deaf, mute) => {
                let node = &mut self.nodes[node];
                let change = |count: &mut u32| *count = if begins { *count + 1 } else { *count - 1 };
                if deaf {
                    change(&mut node.deaf);
                }
                if mute {
                    change(&mut node.mute);
                }
            }
            Happening::ControllerDies => self.chiefs[0].alive = false,
            Happening::ControllerBegins => self.take_over(),
            Happening::ControllerFreezes(length) => {
                self.chiefs[0].frozen = true;
                self.at(self.now + length, Happening::ControllerThaws);
            }
            Happening::ControllerThaws => {
                self.chiefs[0].frozen = false;
                for event in std::mem::take(&mut self.chiefs[0].waiting) {
                    self.tell_chief(0, event);
                }
                self.tell_chief(0, ControllerEvent::Tick);
                if self.chiefs.len() > 1 {
                    // Its next refresh of the lock is refused.
                    let after = self.random.below(2000 * MS);
                    self.at(self.now + after, Happening::Deposed(0));
                }
            }
            _ => {}
        }
    }

    /// The gate is looked at before anything else, and nothing was sent in the meantime.
    pub(crate) fn thaw(&mut self, node: usize) {
        let Some(since) = self.nodes[node].frozen else { return };
        self.nodes[node].settle(since);
        self.nodes[node].frozen = None;
        let frozen = &mut self.nodes[node];
        let shut = frozen.gate.map_or(0, |gate| frozen.clock.truth(gate));
        if let Some(sending) = &mut frozen.sending
            && sending.ended.is_none()
            && shut <= self.now
        {
            // No frame leaves at the old end, or now.
            sending.ended = Some((since.max(sending.from), true));
            if sending.from < since {
                frozen.last_frame = Some(since);
            }
        }
        let (held, kept) = std::mem::take(&mut self.held).into_iter().partition(|(held, _)| *held == node);
        self.held = kept;
        let held: Vec<_> = held;
        self.nodes[node].wake = None;
        for (_, what) in held {
            self.happen(what);
        }
        let incarnation = self.nodes[node].incarnation;
        self.at(self.now, Happening::SendersLook(node, incarnation));
        self.tell_node(node, AgentEvent::Tick);
    }

    pub(crate) fn take_over(&mut self) {
        let Some(record) = self.record.clone().filter(RunRecord::is_unfinished) else { return };
        let epoch = record.head.epoch + 1;
        self.install(ControllerMachine::from_record(record, epoch, self.limits));
        let chief = self.chiefs.len() - 1;
        self.tell_chief(chief, ControllerEvent::Begin);
        for (node, result) in self.store.clone() {
            let name = self.nodes[node].name.clone();
            self.tell_chief(chief, ControllerEvent::Collected(name, result));
        }
    }
}
