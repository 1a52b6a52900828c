//! The end of a run: the last look at every key, and what is checked then.
//!
//! Always true: the run's history has the last look in it, so an acknowledged change that is gone is seen.

use super::*;

impl World<'_> {
    /// The run is over: everybody is done, or dead. Reads every key once more and checks all that can be checked now.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn finish(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let waits = |actor: &Actor| actor.life == Life::Alive && actor.client.is_busy();
        if let Some(me) = self.actors.iter().position(waits) {
            let detail = format!("client {me} waits for something that does not come");
            return Err(Violation::new(Promise::Progress, detail));
        }
        let mut observer = Client::new(self.region, 200);
        for at in 0..self.keys.len() {
            let call = Call { ask: Ask::Get, key: self.keys[at].0 };
            let invoked = 2 * u64::from(self.steps) + 2 + 2 * at as u64;
            let answer = match self.alone(&mut observer, FOUNDER, call, 0) {
                Some(End::Answered(answer)) => answer,
                other => {
                    let violation = self.violation.take();
                    let detail = format!("the last {call} gives {other:?}");
                    return Err(violation.unwrap_or_else(|| Violation::new(Promise::Progress, detail)));
                }
            };
            let fate = Fate::Returned(invoked + 1, answer);
            let (life, value) = (self.lives - 1, 0);
            self.history.records.push(Record { client: FOUNDER, call, value, life, invoked, fate });
        }
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        self.history.check(&mut self.checker, &self.keys, self.lives, &mut self.events)?;
        self.book.balance()?;
        self.unpublished()
    }

    /// Blocks that a client wrote and never published are the next that it is given, unless it may not know their fate.
    pub(super) fn unpublished(&mut self) -> Result<(), Violation> {
        if self.story.reuse != Reuse::Never {
            return Ok(());
        }
        for (me, actor) in self.actors.iter_mut().enumerate() {
            if actor.life != Life::Alive {
                continue;
            }
            let unpublished = self.book.unpublished(me);
            for (block, class, purpose) in &unpublished {
                let next = actor.client.allocator().allocate(*class, *purpose);
                let is_one = next.is_some_and(|next| unpublished.iter().any(|entry| entry.0 == next.offset));
                if !is_one {
                    let detail = format!("client {me} neither published nor took back block {block}");
                    return Err(Violation::new(Promise::Accounts, detail));
                }
            }
        }
        Ok(())
    }

    /// What everybody could tell of the run: answers, and which call was over before which began.
    #[cfg(test)]
    pub(in crate::simulation) fn outcome(&self) -> String {
        let mut records: Vec<&Record> = self.history.records.iter().collect();
        records.sort_by_key(|record| (record.client, record.value));
        let mut text = String::new();
        for record in &records {
            match record.fate {
                Fate::Returned(_, answer) => text += &format!("{answer:?} "),
                other => text += &format!("{other:?} "),
            }
            for other in &records {
                let is_before = matches!(other.fate, Fate::Returned(at, _) if at < record.invoked);
                text.push(if is_before { '1' } else { '0' });
            }
            text.push(';');
        }
        text
    }

    /// The history as a person can read it.
    pub fn tell(&self) -> String {
        let mut text = String::new();
        for record in &self.history.records {
            let who = match record.client {
                FOUNDER => "the end".to_owned(),
                number => format!("client {number}"),
            };
            let fate = match record.fate {
                Fate::Open => "open".to_owned(),
                Fate::Nothing => "did nothing".to_owned(),
                Fate::Returned(at, answer) => format!("{answer:?} at {at}"),
            };
            let value =
                if record.call.ask == Ask::Put { format!(" = {}", record.value) } else { String::new() };
            text += &format!("  {who}: {}{value}, from {}: {fate}\n", record.call, record.invoked);
        }
        text
    }
}
