//! The loop around the controller machine: what is said and what happens goes in, what is to be said and told comes out.
//!
//! It is the same for one machine and for a fleet: who carries the messages is the fabric's business, what happens beside
//! them is the [`Crew`]'s.

use crate::agent::now;
use crate::clock;
use crate::error::Error;
use packetrig_fleet::NodeName;
use packetrig_fleet::controller::{Action, Controller, Event, RunRecord};
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::fabric::{self, Endpoint};
use packetrig_fleet::hello::Hello;
use packetrig_fleet::message::{Body, Command, Envelope, Head, Reply};
use packetrig_fleet::report::RunTimes;
use packetrig_stats::clock::{ClockFit, ClockRecord};
use packetrig_units::{MonoTime, Nanos};

/// Longest time between two turns while results come in.
const COLLECTING: Nanos = Nanos::from_millis(2);

/// Who waits so much longer than it wanted to did not run.
const STANDSTILL: Nanos = Nanos::from_secs(1);

/// Who sees everything that happens.
pub type OnEvent<'a> = &'a mut dyn FnMut(&RunEvent);

/// The user's side of a run.
pub struct User<'a> {
    /// Asked at every turn what is wanted now.
    pub wishes: &'a mut dyn FnMut() -> Option<Event>,
    /// Longest time between two turns.
    pub turn: Nanos,
    /// Told everything.
    pub on_event: OnEvent<'a>,
}

/// Something that happened beside the messages.
pub(crate) enum News {
    /// For the machine.
    Event(Event),
    /// To be said to a node.
    Post(NodeName, Body),
    /// To be told to the readers of the event stream.
    Finding(String),
}

/// Whatever a run has beside its machine and its messages.
pub(crate) trait Crew {
    /// What happened since it was asked last; an error ends the run.
    fn news(&mut self) -> Result<Option<News>, Error>;
    /// A node says who it is.
    fn hello(&mut self, _from: &NodeName, _hello: Hello) {}
    /// A node says how its clock compares with this one.
    fn clock(&mut self, _from: NodeName, _record: ClockRecord) {}
    /// How the clocks of the run's nodes compare with this one, as far as it is known.
    fn fits(&self, _for: &NodeName) -> Option<Vec<(NodeName, ClockFit)>> {
        None
    }
    /// What of a command concerns this node.
    fn tailor(&self, _for: &NodeName, command: Command) -> Command {
        command
    }
    /// Keeps what a later controller has to know of the run. `false` if another controller has taken over.
    fn record(&mut self, _record: &RunRecord) -> Result<bool, Error> {
        // On one machine a run ends with its process: nobody would read it.
        Ok(true)
    }
}

impl std::fmt::Debug for User<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("turn", &self.turn).finish_non_exhaustive()
    }
}

/// Takes a run from draft to its end; gives the machine back, and when the run was where.
pub(crate) fn control<E: Endpoint>(
    machine: Controller,
    endpoint: &mut E,
    crew: &mut dyn Crew,
    user: User<'_>,
) -> Result<(Controller, RunTimes), Error> {
    let mut loops = Loop { machine, endpoint, crew, user, began: None, times: RunTimes::default() };
    loops.run()?;
    Ok((loops.machine, loops.times))
}

struct Loop<'a, 'u, E> {
    machine: Controller,
    endpoint: &'a mut E,
    crew: &'a mut dyn Crew,
    user: User<'u>,
    /// When the first thing happened.
    began: Option<MonoTime>,
    times: RunTimes,
}

impl<E: Endpoint> Loop<'_, '_, E> {
    fn run(&mut self) -> Result<(), Error> {
        self.feed(Event::Begin)?;
        while let Some(deadline) = self.machine.next_deadline() {
            while let Some(news) = self.crew.news()? {
                self.take(news)?;
            }
            if let Some(wish) = (self.user.wishes)() {
                self.feed(wish)?;
            }
            // Results come beside the messages.
            let turn = if self.machine.is_collecting() { COLLECTING } else { self.user.turn };
            let (asked, turn) = (now(), deadline.since(now()).min(turn));
            let letter = self.endpoint.receive(turn);
            let overslept = now().since(asked).saturating_sub(turn);
            if overslept > STANDSTILL {
                self.feed(Event::StoodStill(overslept))?;
            }
            let event = letter.and_then(|letter| self.meaning(letter));
            self.feed(event.unwrap_or(Event::Tick))?;
            for trouble in self.endpoint.troubles() {
                self.tell(now(), RunEventKind::Finding(trouble.to_string()));
            }
        }
        Ok(())
    }

    fn take(&mut self, news: News) -> Result<(), Error> {
        match news {
            News::Event(event) => self.feed(event)?,
            News::Post(to, body) => self.post(&to, body),
            News::Finding(text) => self.tell(now(), RunEventKind::Finding(text)),
        }
        Ok(())
    }

    fn meaning(&mut self, Envelope { from, body }: Envelope) -> Option<Event> {
        match body {
            Body::Reply(head, reply) => Some(Event::Reply(from, head, reply)),
            Body::Telemetry(head, sample) => Some(Event::Telemetry(from, head, sample)),
            Body::Renew(head, nonce) => Some(Event::Renewal(from, head, nonce)),
            Body::Clock(head, record) => {
                if head == *self.machine.head() {
                    self.crew.clock(from, *record);
                }
                None
            }
            Body::Hello(hello) => {
                self.crew.hello(&from, *hello);
                None
            }
            _ => None,
        }
    }

    fn feed(&mut self, event: Event) -> Result<(), Error> {
        // What is decided happens now, even if its record takes a while to be written.
        let at = now();
        for action in self.machine.handle(event, at) {
            match action {
                Action::Emit(kind) => self.tell(at, kind),
                Action::Send(to, head, command) => {
                    if let Some(refusal) = self.command(to, head, command) {
                        return self.feed(refusal);
                    }
                }
                Action::Grant(to, head, grant) => self.post(&to, Body::Granted(head, grant)),
                // What follows would be sent on somebody else's watch.
                Action::Record(record) if !self.crew.record(&record)? => return self.feed(Event::Deposed),
                Action::Record(_) => {}
            }
        }
        Ok(())
    }

    /// Sends a command. One that no fabric can carry is refused in the name of its node: it would never be answered.
    fn command(&mut self, to: NodeName, head: Head, command: Command) -> Option<Event> {
        if let (Command::Confirm { .. }, Some(fits)) = (&command, self.crew.fits(&to)) {
            self.post(&to, Body::Clocks(head.clone(), fits));
        }
        let command = match self.crew.tailor(&to, command) {
            Command::Prepare(mut own) => {
                own.clock = own.clock.map(|server| clock::for_node(&server, &to));
                Command::Prepare(own)
            }
            other => other,
        };
        let error = self.endpoint.post(&to, Body::Command(head.clone(), command)).err()?;
        let is_too_large = matches!(error, fabric::Error::TooLarge(_));
        is_too_large.then(|| Event::Reply(to, head, Reply::Refused(error.to_string())))
    }

    fn post(&mut self, to: &NodeName, body: Body) {
        // A node that is gone is noticed by its silence, or by its thread's end.
        self.endpoint.post(to, body).unwrap_or(());
    }

    fn tell(&mut self, at: MonoTime, kind: RunEventKind) {
        let event = RunEvent { run: self.machine.head().run.clone(), at, kind };
        self.times.hear(&event, *self.began.get_or_insert(event.at));
        (self.user.on_event)(&event);
    }
}
