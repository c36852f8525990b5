//! A process that is forked with a store open: the child can do nothing with it, is told so, and does the parent no harm.

use super::common::folder::Folder;
use super::*;
use std::cell::Cell;
use std::rc::Rc;
use tapetum::{FreezeOptions, KeyRange, KeyspaceKind, Options, QueryError};

/// How long a child may take before it counts as hanging.
const CHILD_SECONDS: u32 = 60;

type Check = (&'static str, Box<dyn FnOnce() -> bool>);

/// Runs checks in a forked child, in order; gives those that failed, or were not reached.
fn wrong_in_child(checks: Vec<Check>) -> Vec<&'static str> {
    let names: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    let mut ends = [0; 2];
    // SAFETY: makes a pipe; then a child that does its checks, writes to the pipe and ends.
    let child = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::fork()
    };
    assert!(child >= 0, "no child");
    if child == 0 {
        // SAFETY: ends this process if it hangs.
        unsafe { libc::alarm(CHILD_SECONDS) };
        for (number, (_, check)) in checks.into_iter().enumerate() {
            let told = [number as u8, u8::from(check())];
            // SAFETY: writes two bytes that are ours.
            unsafe { libc::write(ends[1], told.as_ptr().cast(), told.len()) };
        }
        // SAFETY: ends this process, without running what others want to be run at its end.
        unsafe { libc::_exit(0) };
    }
    let (mut right, mut told) = (Vec::new(), [0u8; 2]);
    // SAFETY: our own descriptors and child, and two bytes that are ours.
    unsafe {
        libc::close(ends[1]);
        while libc::read(ends[0], told.as_mut_ptr().cast(), told.len()) == told.len() as isize {
            right.extend((told[1] == 1).then(|| names[usize::from(told[0])]));
        }
        libc::close(ends[0]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    names.into_iter().filter(|name| !right.contains(name)).collect()
}

fn is_forked<T>(result: Result<T, impl Into<QueryError>>) -> bool {
    result.err().map(Into::into) == Some(QueryError::Store(Error::Forked))
}

fn check(name: &'static str, right: impl FnOnce() -> bool + 'static) -> Check {
    (name, Box::new(right))
}

fn store_at(folder: &Folder) -> Store {
    let options = Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20);
    options.open(&**folder).unwrap()
}

/// Checks of the answers that a store of the parent gives in the child, call by call.
fn calls_of(store: &Store) -> Vec<Check> {
    let words = store.create_keyspace_of("words", KeyspaceKind::Ordered).unwrap();
    words.put(b"key", b"value").unwrap();
    words.put(b"other", b"value").unwrap();
    let (mut items, mut scan) = (store.items(), words.scan(KeyRange::default()).unwrap());
    assert!(items.next().unwrap().is_ok() && scan.next().unwrap().is_ok());
    let with = |name, call: fn(&Store) -> bool| {
        let store = store.clone();
        check(name, move || call(&store))
    };
    let (get, put, rest) = (words.clone(), words.clone(), words);
    vec![
        with("get", |store| is_forked(store.get(b"before"))),
        with("put", |store| is_forked(store.put(b"child", b"2"))),
        with("delete", |store| is_forked(store.delete(b"before"))),
        with("batch", |store| is_forked(store.batch(&[put_of_child()]))),
        with("session", |store| is_forked(store.session()) && is_forked(store.session_of_one_thread())),
        with("keyspace", |store| is_forked(store.keyspace("words"))),
        with("create_keyspace", |store| is_forked(store.create_keyspace("more"))),
        with("drop_keyspace", |store| is_forked(store.drop_keyspace("words"))),
        with("resize", |store| is_forked(store.resize_capacity(128 << 20)) && is_forked(store.resize_memory(64 << 20))),
        with("warm", |store| is_forked(store.warm(Vec::new()))),
        with("inspect", |store| is_forked(tapetum::inspect(store))),
        with("figures", |store| store.stats().items == 0 && store.keyspaces().is_empty() && store.phases().is_empty()),
        with("failure", |store| store.failure() == Some(Error::Forked)),
        check("ordered get", move || is_forked(get.get(b"key"))),
        check("ordered put", move || is_forked(put.put(b"key", b"2"))),
        check("ordered scan", move || is_forked(rest.scan(KeyRange::default()))),
        with("freeze", |store| store.freeze(&FreezeOptions::default()).is_err() && store.freezes().is_empty()),
        check("a scan that had begun", move || scan.next().is_some_and(is_forked) && scan.next().is_none()),
        check("items that had begun", move || items.next().is_some_and(is_forked) && items.next().is_none()),
        with("close", |store| is_forked(store.close())),
    ]
}

fn put_of_child() -> Write<'static> {
    put(b"child", b"2")
}

#[test]
fn a_forked_child_is_told_that_the_store_is_its_parents_and_loses_nothing_of_it() {
    let folder = Folder::new("fork");
    let store = store_at(&folder);
    store.put(b"before", b"1").unwrap();
    let mut checks = calls_of(&store);
    // The child takes the test's own handle too: the parent's copy of it stays.
    let last = Rc::new(Cell::new(Some(store)));
    let taken = last.clone();
    checks.push(check("drop", move || {
        drop(taken.take());
        true
    }));
    assert_eq!(wrong_in_child(checks), Vec::<&str>::new());
    let store = last.take().unwrap();
    store.put(b"parent", b"3").unwrap();
    assert!(tapetum::Store::open(&*folder).is_err(), "the lock on the files is the parent's still");
    store.close().unwrap();
    drop(store);
    let store = store_at(&folder);
    let there = [&b"before"[..], b"parent", b"child"].map(|key| store.get(key).unwrap().is_some());
    assert_eq!(there, [true, true, false]);
}

#[test]
fn a_session_that_went_through_a_fork_answers_everything_with_an_error() {
    let folder = Folder::new("fork-session");
    let store = store_at(&folder);
    store.put(b"before", b"1").unwrap();
    let mut session = store.session().unwrap();
    session.submit(7, Request::Get { key: b"before" }).unwrap();
    let put = Request::Put { key: b"k", value: b"v", flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
    session.submit(8, put).unwrap();
    let checks = vec![check("session", move || {
        session.submit(9, Request::Get { key: b"before" }).unwrap();
        session.submit_sync(10).unwrap();
        session.submit_batch(11, &[put_of_child()]).unwrap();
        session.wait(None);
        let (mut replies, mut more) = (Vec::new(), Vec::new());
        session.poll(&mut replies);
        session.submit(12, Request::Get { key: b"before" }).unwrap();
        session.poll(&mut more);
        session.poll(&mut more);
        replies.append(&mut more);
        let mut tokens: Vec<u64> = replies.iter().map(|reply| reply.token).collect();
        tokens.sort_unstable();
        let is_forked = |reply: &Reply| reply.outcome == Outcome::Failed(Error::Forked);
        replies.iter().all(is_forked) && tokens == [7, 8, 9, 10, 11, 12] && session.in_flight() == 0
    })];
    assert_eq!(wrong_in_child(checks), Vec::<&str>::new());
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"1");
}

#[test]
fn a_forked_child_opens_a_store_of_its_own() {
    let (folder, own) = (Folder::new("fork-parent"), Folder::new("fork-child"));
    let store = store_at(&folder);
    store.put(b"before", b"1").unwrap();
    let path = own.join("store");
    let at = path.clone();
    let checks = vec![check("open", move || {
        let store = Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20).open(&at).unwrap();
        let stored = store.put(b"child", b"2").is_ok() && store.get(b"child").unwrap().is_some();
        stored && store.close().is_ok()
    })];
    assert_eq!(wrong_in_child(checks), Vec::<&str>::new());
    drop(store);
    assert!(Store::open(&path).unwrap().get(b"child").unwrap().is_some());
}
