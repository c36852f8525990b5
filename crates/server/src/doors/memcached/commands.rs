//! From a parsed command to the store: what each command submits, and how its reply will look.

use tapetum::{Condition, Initial, Request};

use crate::doors::memcached::protocol::binary::{self, Origin, Status};
use crate::doors::memcached::protocol::many_keys::{self, MoreKeys};
use crate::doors::memcached::protocol::reply::{self, BinaryAnswer, Form, TextAnswer};
use crate::doors::memcached::protocol::{VERSION, delete_all_at, expiry_from_client, text};
use crate::net::connection::{Connection, Context, ManyKeys, TRIED_BYTES, ThenClose};
use crate::stats::{self, count};
use crate::store::engine::Session;
use crate::store::errands::{Errand, Order};

impl Connection {
    /// Submits one request that holds `bytes` of memory until it is answered; `None` if it has to wait.
    pub(crate) fn submit<S: Session>(
        &mut self,
        form: Form,
        request: Request<'_>,
        key: &[u8],
        bytes: usize,
        cx: &mut Context<'_, S>,
    ) -> Option<()> {
        if !self.may_follow(&request) {
            return None;
        }
        let is_tried = !self.may_submit(form, bytes, cx);
        if is_tried && !(request.shows_value() && cx.session.has_room() && self.try_get()) {
            return None;
        }
        if !request.shows_value() {
            let token = self.slot(form, key, bytes, cx.budget, cx.gets);
            cx.session.submit(token, request);
            return Some(());
        }
        // The share of the room there is before this takes of it.
        let (bytes, value_bytes_unasked) = match is_tried {
            true => (0, TRIED_BYTES),
            false => (bytes, bytes.max(cx.gets.value_bytes_unasked(cx.budget))),
        };
        let token = self.slot(form, key, bytes, cx.budget, cx.gets);
        self.slots.last_may_ask(request.key());
        cx.session.submit_within(token, request, value_bytes_unasked);
        Some(())
    }

    /// Flushes and figures see everything before them and nothing after; `None` if something is still on its way.
    fn all_answered(&mut self) -> Option<()> {
        self.wait_for_all().then_some(())
    }

    /// `None` if the command has to wait; else how much of its frame is taken.
    pub(crate) fn text_command<S: Session>(
        &mut self,
        command: text::Command<'_>,
        frame: &[u8],
        cx: &mut Context<'_, S>,
    ) -> Option<usize> {
        use text::Command;
        match command {
            Command::Get { keys, stamps, goes_on } => {
                return Some(self.many_start(keys, frame, goes_on, (None, stamps)));
            }
            Command::GetAndTouch { keys, exptime, stamps, goes_on } => {
                let touch = Some(expiry_from_client(exptime, cx.now));
                return Some(self.many_start(keys, frame, goes_on, (touch, stamps)));
            }
            Command::Store { verb, key, flags, exptime, stamp, value, noreply } => {
                let expiry = expiry_from_client(exptime, cx.now);
                let put = |condition| Request::Put { key, value, flags, expiry, condition };
                let request = match verb {
                    text::Verb::Set => put(Condition::Always),
                    text::Verb::Add => put(Condition::Absent),
                    text::Verb::Replace => put(Condition::Present),
                    text::Verb::Cas => put(Condition::Stamp(stamp)),
                    text::Verb::Append => Request::Append { key, value, stamp: None },
                    text::Verb::Prepend => Request::Prepend { key, value, stamp: None },
                };
                let answer = TextAnswer::Store { stamped: verb == text::Verb::Cas };
                self.submit(Form::Text { answer, noreply }, request, key, value.len(), cx)?;
                count(&cx.counters.cmd_set, 1);
            }
            Command::Meta { line, value } => self.meta_command(&line, value, cx)?,
            Command::TooLarge { key, delete, noreply } => {
                self.too_large(key, delete, cx)?;
                if !noreply {
                    self.say(text::TOO_LARGE, cx);
                }
            }
            Command::Increment { key, delta, decrement, noreply } => {
                let request = Request::Increment { key, delta, decrement, initial: None, stamp: None, touch: None };
                let answer = TextAnswer::Increment { decrement };
                self.submit(Form::Text { answer, noreply }, request, key, 0, cx)?;
            }
            Command::Touch { key, exptime, noreply } => {
                let request = Request::Touch { key, expiry: expiry_from_client(exptime, cx.now) };
                self.submit(Form::Text { answer: TextAnswer::Touch, noreply }, request, key, 0, cx)?;
                count(&cx.counters.cmd_touch, 1);
            }
            Command::Delete { key, noreply } => {
                let request = Request::Delete { key, stamp: None };
                self.submit(Form::Text { answer: TextAnswer::Delete, noreply }, request, key, 0, cx)?;
            }
            Command::FlushAll { delay, noreply } => {
                self.flush_all(Form::Text { answer: TextAnswer::FlushAll, noreply }, delay, cx)?;
            }
            Command::Verbosity { noreply: false } => self.say("OK\r\n", cx),
            Command::Verbosity { noreply: true } | Command::Refused { complaint: None } => {}
            Command::Refused { complaint: Some(complaint) } => self.say(complaint, cx),
            Command::RefusedLine { complaint, close } => self.refuse_line(complaint, close, cx),
            Command::Version => self.say(&format!("VERSION {VERSION}\r\n"), cx),
            Command::Stats { argument } => self.text_stats(argument, cx)?,
            Command::Resize { size, bytes, noreply } => {
                self.errand(Errand::Resize { size, bytes }, noreply, cx)?;
            }
            Command::CacheMemlimit { bytes, noreply } => {
                self.errand(Errand::CacheMemlimit { bytes }, noreply, cx)?;
            }
            Command::Quit => self.closing = true,
        }
        Some(frame.len())
    }

    /// A reply that needs nothing from the store.
    pub(crate) fn say<S: Session>(&mut self, line: &str, cx: &mut Context<'_, S>) {
        self.answer(Form::Silent, cx.pool, |out| out.extend_from_slice(line.as_bytes()));
    }

    /// Answers a line that has not ended, and throws the rest of it away.
    fn refuse_line<S: Session>(&mut self, complaint: &str, close: bool, cx: &mut Context<'_, S>) {
        self.skipped_line = Some(ThenClose(close));
        self.say(complaint, cx);
    }

    /// Begins a text get: everything before its keys is taken.
    fn many_start(&mut self, keys: &[u8], frame: &[u8], goes_on: bool, (touch, stamps): (Option<u32>, bool)) -> usize {
        let end_bytes = if goes_on { 0 } else { text::line_end_bytes(frame) };
        self.many = Some(ManyKeys { list_bytes: keys.len(), end_bytes, goes_on, touch, stamps });
        frame.len() - end_bytes - keys.len()
    }

    /// Finds the next keys of a text get that goes on in `rest`; the bytes taken, `None` if more of them must come first.
    pub(crate) fn find_more_keys<S: Session>(&mut self, rest: &[u8], cx: &mut Context<'_, S>) -> Option<usize> {
        match many_keys::more_keys(rest, self.scanned_bytes()) {
            MoreKeys::NeedMore { total_bytes, scanned_bytes } => self.need_more(total_bytes, scanned_bytes),
            MoreKeys::List { list_bytes, end_bytes } => {
                self.frame_done(0);
                if let Some(many) = &mut self.many {
                    (many.list_bytes, many.end_bytes, many.goes_on) = (list_bytes, end_bytes, end_bytes == 0);
                }
                Some(0)
            }
            MoreKeys::Refused { complaint, consumed_bytes } => {
                self.frame_done(0);
                self.many = None;
                self.skipped_line = Some(ThenClose(false));
                self.answer(Form::TextGetEnd, cx.pool, |out| out.extend_from_slice(complaint.as_bytes()));
                Some(consumed_bytes)
            }
        }
    }

    /// Submits the next key of a text get, or ends it; the bytes taken, `None` if it has to wait.
    pub(crate) fn many_step<S: Session>(&mut self, rest: &[u8], cx: &mut Context<'_, S>) -> Option<usize> {
        let &ManyKeys { list_bytes, end_bytes, goes_on, touch, stamps } = self.many.as_ref()?;
        let list = &rest[..list_bytes];
        let Some(key) = text::split(list).next() else {
            if goes_on {
                self.many = Some(ManyKeys { list_bytes: 0, end_bytes, goes_on, touch, stamps });
                return Some(list_bytes);
            }
            self.many = None;
            self.answer(Form::TextGetEnd, cx.pool, |out| out.extend_from_slice(reply::TEXT_GET_END));
            return Some(list_bytes + end_bytes);
        };
        let form = Form::TextGet { stamps, touch: touch.is_some() };
        self.get(form, key, touch, cx)?;
        let spaces = list.iter().take_while(|&&byte| byte == b' ').count();
        let taken = spaces + key.len();
        if let Some(many) = &mut self.many {
            many.list_bytes -= taken;
        }
        Some(taken)
    }

    fn get<S: Session>(&mut self, form: Form, key: &[u8], touch: Option<u32>, cx: &mut Context<'_, S>) -> Option<()> {
        let request = match touch {
            None => Request::Get { key },
            Some(expiry) => Request::GetAndTouch { key, expiry },
        };
        let bytes = self.value_bytes_expected(cx.gets);
        self.submit(form, request, key, bytes, cx)?;
        count(if touch.is_some() { &cx.counters.cmd_touch } else { &cx.counters.cmd_get }, 1);
        Some(())
    }

    /// The old value goes too: a client that meant to replace it would take it for the new one.
    pub(crate) fn too_large<S: Session>(&mut self, key: &[u8], delete: bool, cx: &mut Context<'_, S>) -> Option<()> {
        if delete {
            self.submit(Form::Silent, Request::Delete { key, stamp: None }, key, 0, cx)?;
        }
        count(&cx.counters.store_too_large, 1);
        Some(())
    }

    fn flush_all<S: Session>(&mut self, form: Form, delay: i64, cx: &mut Context<'_, S>) -> Option<()> {
        self.all_answered()?;
        self.submit(form, Request::DeleteAll { at: delete_all_at(delay, cx.now) }, b"", 0, cx)?;
        count(&cx.counters.cmd_flush, 1);
        Some(())
    }

    /// Sends for something that takes long. It sees everything before it, and what comes after waits.
    fn errand<S: Session>(&mut self, errand: Errand, noreply: bool, cx: &mut Context<'_, S>) -> Option<()> {
        self.all_answered()?;
        let form = if noreply { Form::Silent } else { Form::Text { answer: TextAnswer::Errand, noreply } };
        if !self.may_submit(form, 0, cx) {
            return None;
        }
        let token = self.slot(form, b"", 0, cx.budget, cx.gets);
        self.set_barrier();
        if !cx.errands.send(Order { errand, worker: cx.worker, token }) {
            self.complete_errand(token as u32, text::BUSY.into(), cx.pool);
        }
        Some(())
    }

    fn text_stats<S: Session>(&mut self, argument: &[u8], cx: &mut Context<'_, S>) -> Option<()> {
        let mut words = text::split(argument);
        let lines = match words.next().unwrap_or_default() {
            b"inspect" => {
                let errand = words.next().map_or(Errand::Inspect, |key| Errand::Locate { key: key.to_vec() });
                return self.errand(errand, false, cx);
            }
            b"" => {
                self.all_answered()?;
                stats::lines(cx.figures.general(cx.now))
            }
            b"reset" => {
                cx.figures.reset();
                self.say("RESET\r\n", cx);
                return Some(());
            }
            other => match cx.figures.group(other) {
                Some(lines) => lines,
                None => {
                    self.say(text::ERROR, cx);
                    return Some(());
                }
            },
        };
        self.text_lines(lines, cx);
        Some(())
    }

    fn text_lines<S: Session>(&mut self, lines: Vec<(String, String)>, cx: &mut Context<'_, S>) {
        self.answer(Form::Silent, cx.pool, |out| {
            for (name, value) in lines {
                out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
            }
            out.extend_from_slice(b"END\r\n");
        });
    }

    /// `None` if the command has to wait.
    pub(crate) fn binary_command<S: Session>(
        &mut self,
        origin: Origin,
        command: binary::Command<'_>,
        cx: &mut Context<'_, S>,
    ) -> Option<()> {
        use binary::Command;
        let form = |answer, quiet| Form::Binary { answer, origin, quiet };
        let stamp_of = |stamp: u64| (stamp != 0).then_some(stamp);
        match command {
            Command::Get { key, with_key, quiet } => {
                self.get(form(BinaryAnswer::Get { with_key, touch: false }, quiet), key, None, cx)?;
            }
            Command::GetAndTouch { key, exptime, with_key, quiet } => {
                let touch = Some(expiry_from_client(i64::from(exptime), cx.now));
                self.get(form(BinaryAnswer::Get { with_key, touch: true }, quiet), key, touch, cx)?;
            }
            // The reply carries the flags, which only a get brings.
            Command::Touch { key, exptime } => {
                let request = Request::GetAndTouch { key, expiry: expiry_from_client(i64::from(exptime), cx.now) };
                self.submit(form(BinaryAnswer::Touch, false), request, key, self.value_bytes_expected(cx.gets), cx)?;
                count(&cx.counters.cmd_touch, 1);
            }
            Command::Store { verb, key, flags, exptime, stamp, value, quiet } => {
                let expiry = expiry_from_client(i64::from(exptime), cx.now);
                let put = |condition| Request::Put { key, value, flags, expiry, condition };
                let request = match (verb, stamp_of(stamp)) {
                    (binary::Verb::Append, stamp) => Request::Append { key, value, stamp },
                    (binary::Verb::Prepend, stamp) => Request::Prepend { key, value, stamp },
                    (_, Some(stamp)) => put(Condition::Stamp(stamp)),
                    (binary::Verb::Set, None) => put(Condition::Always),
                    (binary::Verb::Add, None) => put(Condition::Absent),
                    (binary::Verb::Replace, None) => put(Condition::Present),
                };
                let answer = BinaryAnswer::Store { verb, stamped: stamp != 0 };
                self.submit(form(answer, quiet), request, key, value.len(), cx)?;
                count(&cx.counters.cmd_set, 1);
            }
            Command::TooLarge { key, delete } => {
                self.too_large(key, delete, cx)?;
                self.refuse(origin, Status::TooLarge, cx);
            }
            Command::Increment { key, delta, decrement, initial, stamp, quiet } => {
                let initial = initial
                    .map(|(value, exptime)| Initial { value, expiry: expiry_from_client(i64::from(exptime), cx.now) });
                let stamp = stamp_of(stamp);
                let request = Request::Increment { key, delta, decrement, initial, stamp, touch: None };
                self.submit(form(BinaryAnswer::Increment { decrement }, quiet), request, key, 0, cx)?;
            }
            Command::Delete { key, stamp, quiet } => {
                let request = Request::Delete { key, stamp: stamp_of(stamp) };
                self.submit(form(BinaryAnswer::Delete, quiet), request, key, 0, cx)?;
            }
            Command::Flush { delay, quiet } => {
                self.flush_all(form(BinaryAnswer::Flush, quiet), i64::from(delay), cx)?;
            }
            Command::NoOp => self.answer(Form::Silent, cx.pool, |out| reply::binary_success(out, origin, false, 0)),
            Command::Version => self.answer(Form::Silent, cx.pool, |out| {
                reply::binary_pair(out, origin, b"", VERSION.as_bytes());
            }),
            Command::Stat { argument } => self.binary_stats(origin, argument, cx)?,
            Command::Quit { quiet } => {
                self.answer(Form::Silent, cx.pool, |out| reply::binary_success(out, origin, quiet, 0));
                self.closing = true;
            }
            Command::Refused { status, close } => {
                self.refuse(origin, status, cx);
                self.closing |= close;
            }
        }
        Some(())
    }

    fn refuse<S: Session>(&mut self, origin: Origin, status: Status, cx: &mut Context<'_, S>) {
        self.answer(Form::Silent, cx.pool, |out| reply::binary_refusal(out, origin, status, status.text()));
    }

    fn binary_stats<S: Session>(&mut self, origin: Origin, argument: &[u8], cx: &mut Context<'_, S>) -> Option<()> {
        let lines = match argument {
            b"" => {
                self.all_answered()?;
                stats::lines(cx.figures.general(cx.now))
            }
            b"reset" => {
                cx.figures.reset();
                Vec::new()
            }
            other => match cx.figures.group(other) {
                Some(lines) => lines,
                None => {
                    self.refuse(origin, Status::NotFound, cx);
                    return Some(());
                }
            },
        };
        self.binary_lines(origin, lines, cx);
        Some(())
    }

    fn binary_lines<S: Session>(&mut self, origin: Origin, lines: Vec<(String, String)>, cx: &mut Context<'_, S>) {
        self.answer(Form::Silent, cx.pool, |out| {
            for (name, value) in lines {
                reply::binary_pair(out, origin, name.as_bytes(), value.as_bytes());
            }
            // An empty one ends the list.
            reply::binary_success(out, origin, false, 0);
        });
    }
}
