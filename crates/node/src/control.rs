//! The loop around the controller machine: what is said and what happens goes in, what is to be said and told comes out.
//!
//! It is the same for one machine and for a fleet: who carries the messages is the fabric's business, what happens beside
//! them is the [`Crew`]'s.

use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::NodeName;
use packetrig_fleet::controller::{Action, Controller, Event};
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::hello::Hello;
use packetrig_fleet::message::{Body, Envelope};
use packetrig_units::Nanos;

/// Who sees everything that happens.
pub type OnEvent<'a> = &'a mut dyn FnMut(&RunEvent);

/// The user's side of a run.
pub struct User<'a> {
    /// Asked at every turn what is wanted now.
    pub(crate) wishes: &'a mut dyn FnMut() -> Option<Event>,
    /// Longest time between two turns.
    pub(crate) turn: Nanos,
    /// Told everything.
    pub(crate) on_event: OnEvent<'a>,
}

/// Whatever a run has beside its machine and its messages.
pub(crate) trait Crew {
    /// What happened since it was asked last; an error ends the run.
    fn news(&mut self) -> Result<Option<Event>, Error>;
    /// A node says who it is.
    fn hello(&mut self, _from: NodeName, _hello: Hello) -> Option<Event> {
        None
    }
}

impl std::fmt::Debug for User<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("turn", &self.turn).finish_non_exhaustive()
    }
}

/// Takes a run from draft to its end; gives the machine back.
pub(crate) fn control<E: Endpoint>(
    machine: Controller,
    endpoint: &mut E,
    crew: &mut dyn Crew,
    user: User<'_>,
) -> Result<Controller, Error> {
    let mut loops = Loop { machine, endpoint, crew, user };
    loops.run()?;
    Ok(loops.machine)
}

struct Loop<'a, 'u, E> {
    machine: Controller,
    endpoint: &'a mut E,
    crew: &'a mut dyn Crew,
    user: User<'u>,
}

impl<E: Endpoint> Loop<'_, '_, E> {
    fn run(&mut self) -> Result<(), Error> {
        self.feed(Event::Begin);
        while let Some(deadline) = self.machine.next_deadline() {
            while let Some(event) = self.crew.news()? {
                self.feed(event);
            }
            if let Some(wish) = (self.user.wishes)() {
                self.feed(wish);
            }
            let letter = self.endpoint.receive(deadline.since(now()).min(self.user.turn));
            let event = letter.and_then(|letter| self.meaning(letter));
            self.feed(event.unwrap_or(Event::Tick));
            for trouble in self.endpoint.troubles() {
                self.tell(RunEventKind::Finding(trouble.to_string()));
            }
        }
        Ok(())
    }

    fn meaning(&mut self, Envelope { from, body }: Envelope) -> Option<Event> {
        match body {
            Body::Reply(head, reply) => Some(Event::Reply(from, head, reply)),
            Body::Telemetry(head, sample) => Some(Event::Telemetry(from, head, sample)),
            Body::Hello(hello) => self.crew.hello(from, *hello),
            _ => None,
        }
    }

    fn feed(&mut self, event: Event) {
        for action in self.machine.handle(event, now()) {
            match action {
                Action::Emit(kind) => self.tell(kind),
                Action::Send(to, head, command) => {
                    // A node that is gone is noticed by its silence, or by its thread's end.
                    self.endpoint.post(&to, Body::Command(head, command)).unwrap_or(());
                }
            }
        }
    }

    fn tell(&mut self, kind: RunEventKind) {
        (self.user.on_event)(&RunEvent { run: self.machine.head().run.clone(), at: now(), kind });
    }
}
