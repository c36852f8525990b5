//! A session whose owner sleeps on its descriptors, as an event loop does: over a file, so that the kernel does the waking.

use crate::common::folder::Folder;
use crate::common::{drive_of, new_on};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use tapetum::{Condition, Expiry, KeyspaceKind, KeyspaceRef, Outcome, Request, Session, Store, StoreOptions, Sync};
use tapetum_drive::{Env, FileFlash, IoEngine, SplitMix64};

const CAPACITY_BYTES: u64 = 8 << 20;
const ROUNDS: u64 = 60;
const WRITES: u64 = 30;
const VALUE_BYTES: usize = 1000;
/// A wake-up that takes longer is lost.
const PATIENCE_MS: i32 = 20_000;

fn store(folder: &Folder) -> Store {
    let options = StoreOptions {
        segment_bytes: 64 << 10,
        partition_bits: 2,
        sync: Sync::Always,
        ..StoreOptions::new(CAPACITY_BYTES, 16 << 20)
    };
    let env = Env::system();
    let flash = FileFlash::create(&folder.join("drive"), CAPACITY_BYTES, IoEngine::Auto, &env).unwrap();
    new_on(&drive_of(Arc::new(flash), &options, env), &options)
}

fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    SplitMix64::new(number).fill(&mut value);
    value
}

/// An epoll that hears of what becomes readable.
fn epoll_of(session: &Session) -> OwnedFd {
    // SAFETY: the new descriptor is ours alone; `event` lives through the call.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert!(epoll >= 0);
        let epoll = OwnedFd::from_raw_fd(epoll);
        for fd in session.event_fds() {
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
            assert_eq!(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event), 0);
        }
        epoll
    }
}

fn sleep(epoll: &OwnedFd) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: one live entry.
    let woken = unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, PATIENCE_MS) };
    let interrupted = woken < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
    assert!(woken == 1 || interrupted, "nothing woke it");
}

/// Writes that wait until they are durable, beside reads of what was written before, most of it in segments.
fn write_and_read(mut session: Session, epoll: &OwnedFd) {
    let mut replies = Vec::new();
    for round in 0..ROUNDS {
        for number in round * WRITES..(round + 1) * WRITES {
            let key = number.to_be_bytes();
            let (value, condition) = (&value(number), Condition::Always);
            session
                .submit(number, Request::Put { key: &key, value, flags: 0, expiry: Expiry::NONE, condition })
                .unwrap();
        }
        for number in (0..round * WRITES).step_by(7) {
            session.submit(number, Request::Get { key: &number.to_be_bytes() }).unwrap();
        }
        while session.in_flight() > 0 {
            session.poll(&mut replies);
            if replies.is_empty() {
                sleep(epoll);
            }
            for reply in replies.drain(..) {
                match reply.outcome {
                    Outcome::Stored { .. } => {}
                    Outcome::Value { value: range, .. } => assert!(session.bytes(range) == value(reply.token)),
                    other => panic!("{} was answered with {other:?}", reply.token),
                }
            }
        }
    }
}

#[test]
fn a_session_wakes_whoever_sleeps_on_its_descriptors() {
    let folder = Folder::new("sleeping");
    let store = store(&folder);
    for session in [store.session().unwrap(), store.session_of_one_thread().unwrap()] {
        // As a server does: made and watched here, used there.
        let epoll = epoll_of(&session);
        std::thread::spawn(move || write_and_read(session, &epoll)).join().unwrap();
    }
    assert!(store.stats().get_from_flash > 0);
}

/// Long values of an ordered keyspace, several at once: a node, and then an extension for each.
#[test]
fn gets_of_long_values_are_sent_before_their_owner_sleeps() {
    const VALUES: u64 = 40;
    let folder = Folder::new("sleeping-long");
    let store = store(&folder);
    let keyspace = store.create_keyspace_of("long", KeyspaceKind::Ordered).unwrap();
    let long = |number: u64| value(number).repeat(30);
    for number in 0..VALUES {
        keyspace.put(&number.to_be_bytes(), &long(number)).unwrap();
    }
    let mut session = store.session().unwrap();
    get_long(&mut session, keyspace.keyspace(), None, 1);
    let epoll = epoll_of(&session);
    for _ in 0..20 {
        let found = get_long(&mut session, keyspace.keyspace(), Some(&epoll), VALUES);
        assert!(found.into_iter().all(|(number, value)| value == long(number)));
    }
}

/// Gets the first values at once; sleeps on the descriptors, where there are some.
fn get_long(session: &mut Session, keyspace: KeyspaceRef, epoll: Option<&OwnedFd>, count: u64) -> Vec<(u64, Vec<u8>)> {
    let (mut found, mut replies) = (Vec::new(), Vec::new());
    for number in 0..count {
        session.submit_to(keyspace, number, Request::Get { key: &number.to_be_bytes() }).unwrap();
    }
    while session.in_flight() > 0 {
        session.poll(&mut replies);
        if let Some(epoll) = epoll.filter(|_| replies.is_empty() && !session.is_ready()) {
            sleep(epoll);
        }
        for reply in replies.drain(..) {
            let Outcome::Value { value, .. } = reply.outcome else { panic!("{reply:?}") };
            found.push((reply.token, session.bytes(value).to_vec()));
        }
    }
    found
}
