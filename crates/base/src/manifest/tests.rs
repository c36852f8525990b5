//! Frames on a drive: written, cut short, damaged, with several clients.

use super::base_marks::{BaseMarks, LogTrim, MarksEdit};
use super::client::{ManifestClient, Misfit};
use super::items::ClientId;
use super::*;
use crate::installer::{Clients, EngineClient, Installer};
use crate::media::io::run;
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_drive::{Drive, Env, FaultyFlash, Flash, MemoryFlash, Opcode};

/// The state of a test engine in the manifest: things by number.
#[derive(Clone, Default, PartialEq, Debug)]
struct Things(BTreeMap<u32, Vec<u8>>);

const THINGS: ClientId = ClientId(55);

impl ManifestClient for Things {
    fn id(&self) -> ClientId {
        THINGS
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        Box::new(self.0.iter().map(|(number, bytes)| [&number.to_le_bytes(), &bytes[..]].concat()))
    }

    fn snapshot_bytes_max(&self) -> u64 {
        self.0.values().map(|bytes| (ITEM_HEAD_BYTES + 4 + bytes.len()) as u64).sum()
    }

    /// Adds a thing. An edit without bytes removes it.
    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        let number = Reader::new(edit).u32()?;
        let is_there = match &edit[4..] {
            [] => self.0.remove(&number).is_some(),
            bytes => self.0.insert(number, bytes.to_vec()).is_none(),
        };
        if is_there { Ok(()) } else { Err(Misfit(format!("drops thing {number}, which is not there"))) }
    }
}

fn engine() -> Vec<Box<dyn EngineClient>> {
    vec![Box::<Things>::default()]
}

/// The edits of a frame.
#[derive(Default)]
struct Edits {
    things: Vec<(u32, Vec<u8>)>,
    marks: Vec<MarksEdit>,
}

impl Edits {
    fn items(&self) -> FrameItems {
        let mut items = FrameItems::default();
        for (number, bytes) in &self.things {
            items.put(THINGS, |writer| {
                writer.u32(*number);
                writer.raw(bytes);
            });
        }
        MarksEdit::put(&self.marks, &mut items);
        items
    }

    fn apply(&self, clients: &mut Clients) -> Result<(), Misfit> {
        self.marks.iter().for_each(|edit| clients.marks.edit(edit));
        let things = clients.of_mut::<Things>();
        self.things.iter().try_for_each(|(number, bytes)| things.apply(&[&number.to_le_bytes(), &bytes[..]].concat()))
    }
}

/// A manifest on a drive of its own, with a store's clients.
struct Bench {
    geometry: Geometry,
    drive: Drive,
    io: Io,
    installer: Installer,
}

/// The frame that trims the log to a buffer.
fn trim(buffer_next: u64) -> Edits {
    let trim = LogTrim { buffer_next, ..LogTrim::default() };
    Edits { marks: vec![MarksEdit::Trim(trim)], ..Edits::default() }
}

impl Bench {
    /// A store of a gigabyte, whose manifest areas have 8 MiB.
    fn large() -> Bench {
        Bench::of(Bench::large_geometry(), 4 << 20)
    }

    fn large_geometry() -> Geometry {
        Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap()
    }

    /// The areas are small, so that snapshots are written often.
    fn small_geometry() -> Geometry {
        Geometry { manifest_bytes: 8 << 10, ..Geometry::new(2 << 20, 64 << 10, 2, 512).unwrap() }
    }

    fn of(geometry: Geometry, local_bytes: usize) -> Bench {
        let flash = MemoryFlash::new(geometry.manifest_offset(2));
        Bench::on(Arc::new(flash), geometry, local_bytes, 1)
    }

    fn on(flash: Arc<dyn Flash>, geometry: Geometry, local_bytes: usize, seed: u64) -> Bench {
        let drive = Drive::new(flash, LocalMemory::new(local_bytes).unwrap(), Vec::new(), Env::simulated(seed).0);
        let io = Io::new(drive.queue_pair(16).unwrap());
        run(&io, Manifest::create(&io, &geometry, 7, &Clients::empty(engine)), || false).unwrap().unwrap();
        let installer = recover(&io, &drive, &geometry).unwrap();
        Bench { geometry, drive, io, installer }
    }

    fn try_install(&mut self, frame: &Edits) -> Result<(), Error> {
        run(&self.io, self.installer.append(&frame.items()), || false).unwrap()?;
        Ok(frame.apply(&mut self.installer)?)
    }

    fn install(&mut self, frame: &Edits) {
        self.try_install(frame).unwrap();
    }

    /// A short frame.
    fn advance(&mut self) {
        self.install(&trim(1 + self.installer.marks.trim.buffer_next));
    }

    /// The result of `Manifest::recover`.
    fn recover(&self) -> Installer {
        recover(&self.io, &self.drive, &self.geometry).unwrap()
    }

    /// Adds segments until a snapshot has many frames, and goes on to the next list.
    fn grow(&mut self) {
        for number in 0..600 {
            self.install(&Edits { things: vec![(number, vec![7; 600])], ..trim(number.into()) });
        }
        let epoch = self.installer.manifest.epoch;
        while self.installer.manifest.epoch == epoch {
            self.advance();
        }
    }

    fn begin_anew(&mut self) -> Result<usize, Error> {
        let Installer { manifest, clients, .. } = &mut self.installer;
        run(&self.io, manifest.begin_anew(clients), || false).unwrap()
    }

    /// Starts the list again and fails: at the end of the first area's snapshot, or `behind` it in the second area's snapshot.
    fn begin_anew_and_fail(faulty: &FaultyFlash, behind: bool) -> Bench {
        let mut bench = Bench::on(Arc::new(faulty.clone()), Bench::large_geometry(), 4 << 20, 1);
        bench.grow();
        let writes = || faulty.submitted(Opcode::Write);
        let before = writes();
        bench.begin_anew().unwrap();
        faulty.fail_nth(Opcode::Write, (writes() - before) / 2 + u64::from(behind));
        bench.begin_anew().unwrap_err();
        bench
    }

    /// Spoils a sector of both copies.
    fn damage_both(&self, position: u64) {
        (0..AREAS).for_each(|area| self.damage(area, position));
    }

    fn sector(&self, area: usize, position: u64) -> Vec<u8> {
        let mut buffer = self.drive.local().allocate(512).unwrap();
        let flash = self.geometry.manifest_offset(area) + position;
        run(&self.io, self.io.read(flash, &mut buffer, 0, 512), || false).unwrap().unwrap();
        buffer.bytes()[..512].to_vec()
    }

    fn set_sector(&self, area: usize, position: u64, bytes: &[u8]) {
        let mut buffer = self.drive.local().allocate(512).unwrap();
        buffer.bytes_mut()[..512].copy_from_slice(bytes);
        let flash = self.geometry.manifest_offset(area) + position;
        run(&self.io, self.io.write_durably(flash, &mut buffer, 512), || false).unwrap().unwrap();
    }

    /// Spoils a sector of the manifest.
    fn damage(&self, area: usize, position: u64) {
        let mut bytes = self.sector(area, position);
        bytes[20] ^= 1;
        self.set_sector(area, position, &bytes);
    }

    fn refusal(&self) -> Error {
        recover(&self.io, &self.drive, &self.geometry).err().expect("it is damaged")
    }
}

fn recover(io: &Io, drive: &Drive, geometry: &Geometry) -> Result<Installer, Error> {
    let recovering = Manifest::recover(io, drive.local(), geometry, 7, || Clients::empty(engine));
    run(io, recovering, || false).unwrap().map(Installer::from)
}

#[test]
fn nothing_follows_a_frame_whose_write_failed() {
    // The failing frame is an edit in one area, the first frame of a snapshot, or a later one of it. Some of its bytes may be written.
    for seed in 0..60 {
        let faulty = FaultyFlash::new(64 << 10, seed);
        let mut bench = Bench::on(Arc::new(faulty.clone()), Bench::small_geometry(), 256 << 10, seed);
        faulty.fail_nth(Opcode::Write, 1 + seed / 2);
        let failed = (1..).find(|number| bench.try_install(&trim(*number)).is_err()).unwrap();
        assert!(bench.try_install(&trim(failed + 1)).is_err(), "seed {seed}: a frame was written after it");
        let found = bench.recover().marks.trim.buffer_next;
        assert!([failed - 1, failed].contains(&found), "seed {seed}: {found}, though {failed} failed");
    }
}

#[test]
fn a_frame_longer_than_local_memory_is_written_and_read() {
    let mut bench = Bench::of(Bench::large_geometry(), 512 << 10);
    let thing = (0, vec![7; 2 * bench.drive.local().bytes_total()]);
    let before = bench.installer.manifest.position;
    bench.install(&Edits { things: vec![thing], ..trim(7) });
    assert!(bench.installer.manifest.position - before > bench.drive.local().bytes_total() as u64);
    assert_eq!(bench.recover().clients, bench.installer.clients);
}

#[test]
fn lists_stay_short_in_large_areas() {
    let mut bench = Bench::large();
    bench.grow();
    let snapshot_end = bench.installer.manifest.snapshot_end;
    assert!(snapshot_end > 2 * CHUNK_BYTES as u64, "{snapshot_end}");
    for _ in 0..2 {
        while bench.installer.manifest.position + 512 <= LIST_SNAPSHOTS * snapshot_end {
            bench.advance();
        }
        let epoch = bench.installer.manifest.epoch;
        bench.advance();
        assert_ne!(bench.installer.manifest.epoch, epoch, "the list is {LIST_SNAPSHOTS} times as long as its snapshot");
        let reads = || bench.drive.counters().opcode(Opcode::Read).completed;
        let before = reads();
        let found = bench.recover();
        let windows = bench.geometry.manifest_bytes / CHUNK_BYTES as u64;
        assert!(reads() - before <= 8 * windows, "{} reads", reads() - before);
        assert!(found.clients == bench.installer.clients);
        assert_eq!(found.manifest.summary(), bench.installer.manifest.summary());
        assert_eq!(found.manifest.snapshot_end, bench.installer.manifest.snapshot_end);
    }
}

#[test]
fn what_the_store_can_do_without_is_said_where_the_snapshot_fits_behind_it() {
    let geometry = Geometry::new(1 << 30, 256 << 10, 2, 512).unwrap();
    let mut bench = Bench::of(Geometry { manifest_bytes: 64 << 10, ..geometry }, 4 << 20);
    let snapshot = snapshot_bytes_max(&bench.geometry, &bench.installer.clients);
    let left = (bench.geometry.manifest_bytes - snapshot) / 512 * 512;
    let mut name = |bytes: u64| {
        let mut items = FrameItems::default();
        let length = bytes as usize - HEADER_BYTES - ITEM_HEAD_BYTES;
        items.put(ClientId::KEYSPACES, |writer| writer.raw(&vec![0; length]));
        let Installer { manifest, clients, .. } = &mut bench.installer;
        run(&bench.io, manifest.append_if_room(clients, &items), || false).unwrap().unwrap()
    };
    assert!(name(512) && name(left));
    assert!(!name(left + 4) && !name(2 * left));
}

#[test]
fn no_epoch_is_begun_twice_though_the_beginning_of_a_snapshot_cut_short_is_damaged() {
    let faulty = FaultyFlash::new(Bench::large_geometry().manifest_offset(2), 1);
    let bench = Bench::begin_anew_and_fail(&faulty, false);
    let Manifest { epoch_last, snapshot_end, .. } = bench.installer.manifest;
    // Some bytes of its end may be written.
    bench.damage(0, snapshot_end - 512);
    for beginning_is_damaged in [false, true] {
        if beginning_is_damaged {
            bench.damage(0, 0);
        }
        let found = bench.recover().manifest;
        assert_eq!((found.epoch, found.epoch_last), (epoch_last - 1, epoch_last));
    }
}

#[test]
fn a_list_that_is_whole_in_one_area_counts_while_its_copy_is_written() {
    let faulty = FaultyFlash::new(Bench::large_geometry().manifest_offset(2), 1);
    let mut bench = Bench::begin_anew_and_fail(&faulty, true);
    let epoch_last = bench.installer.manifest.epoch_last;
    bench.installer = bench.recover();
    assert_eq!(bench.installer.manifest.epoch, epoch_last);
    assert!(bench.installer.manifest.lacking.iter().all(|lacking| !lacking.is_damaged), "a crash is no damage");
    bench.advance();
    assert_eq!(bench.installer.manifest.epoch, epoch_last + 1, "the list is begun anew");
    // Damage that happens before the copy is written is noticed.
    let mut bench = Bench::large();
    bench.grow();
    let positions = (0..bench.installer.manifest.position).step_by(512);
    let copy: Vec<_> = positions.map(|position| (position, bench.sector(1, position))).collect();
    bench.begin_anew().unwrap();
    copy.iter().for_each(|(position, bytes)| bench.set_sector(1, *position, bytes));
    bench.damage(0, 0);
    let refusal = bench.refusal().to_string();
    assert!(refusal.contains("has a newer list, which is damaged"), "{refusal}");
}

#[test]
fn damage_of_one_area_costs_nothing_wherever_it_strikes() {
    for area in 0..AREAS {
        let mut bench = Bench::large();
        bench.grow();
        (0..3).for_each(|_| bench.advance());
        let end = bench.installer.manifest.position;
        let epoch = bench.installer.manifest.epoch;
        for position in (0..end).step_by(512) {
            let bytes = bench.sector(area, position);
            bench.damage(area, position);
            let found = bench.recover();
            assert!(found.clients == bench.installer.clients, "the sector at {position}");
            let Lacking { frames, is_damaged } = found.manifest.lacking[area];
            let is_last = position + 512 == end;
            // A crash may have cut the last frame off.
            assert_eq!((frames, is_damaged), (1, !is_last), "the sector at {position}");
            assert_eq!(found.manifest.lacking[1 - area], Lacking::default());
            bench.set_sector(area, position, &bytes);
        }
        bench.damage(area, 512);
        bench.installer = bench.recover();
        bench.advance();
        bench.damage(1 - area, 512);
        let found = bench.recover();
        assert_eq!((found.manifest.epoch, found.clients), (epoch + 1, bench.installer.clients.clone()));
    }
}

#[test]
fn damage_of_both_areas_is_seen_from_behind_it() {
    for place in 0..3 {
        let mut bench = Bench::large();
        bench.grow();
        let neither = "neither manifest area holds a whole snapshot";
        let snapshot_end = bench.installer.manifest.snapshot_end;
        let (position, message) = match place {
            0 => (0, neither),
            1 => (snapshot_end / 2 / 512 * 512, neither),
            _ => (snapshot_end, "although frame"),
        };
        (0..3).for_each(|_| bench.advance());
        bench.damage_both(position);
        let refusal = bench.refusal().to_string();
        assert!(refusal.contains(message), "{refusal}");
    }
}

/// An engine whose state is one number.
#[derive(Default)]
struct Number(u32);

const NUMBER: ClientId = ClientId(77);

impl ManifestClient for Number {
    fn id(&self) -> ClientId {
        NUMBER
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        Box::new([self.0.to_le_bytes().to_vec()].into_iter())
    }

    fn snapshot_bytes_max(&self) -> u64 {
        4
    }

    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        self.0 = Reader::new(edit).u32()?;
        Ok(())
    }
}

/// The clients of a store with only that engine.
#[derive(Default)]
struct Numbered {
    marks: BaseMarks,
    number: Number,
}

impl ManifestClients for Numbered {
    fn each(&self) -> Vec<&dyn ManifestClient> {
        vec![&self.marks, &self.number]
    }

    fn each_mut(&mut self) -> Vec<&mut dyn ManifestClient> {
        vec![&mut self.marks, &mut self.number]
    }
}

/// A frame that sets the number, trims the log, and takes more than a sector.
fn two_clients(number: u32) -> FrameItems {
    let mut items = FrameItems::default();
    items.put(NUMBER, |writer| {
        writer.u32(number);
        writer.raw(&vec![3; 1000]);
    });
    MarksEdit::put(&trim(number.into()).marks, &mut items);
    items
}

fn numbers(bench: &Bench) -> (u32, u64) {
    let recovering = Manifest::recover(&bench.io, bench.drive.local(), &bench.geometry, 7, Numbered::default);
    let Numbered { marks, number } = run(&bench.io, recovering, || false).unwrap().unwrap().clients;
    (number.0, marks.trim.buffer_next)
}

#[test]
fn a_frame_of_two_clients_that_is_cut_short_counts_for_neither() {
    let mut bench = Bench::of(Bench::small_geometry(), 256 << 10);
    let manifest = &mut bench.installer.manifest;
    let append = |manifest: &mut Manifest, number| {
        run(&bench.io, manifest.append(&Numbered::default(), &two_clients(number)), || false).unwrap().unwrap();
    };
    append(manifest, 1);
    let begin = manifest.summary().position;
    append(manifest, 2);
    let end = manifest.summary().position;
    assert!(end - begin > 2 * 512, "it has several sectors");
    assert_eq!(numbers(&bench), (2, 2));
    let sectors = |area| (begin..end).step_by(512).map(|at| (at, bench.sector(area, at))).collect::<Vec<_>>();
    let written = [0, 1].map(sectors);
    for ((position, first), (_, second)) in written[0].iter().zip(&written[1]) {
        bench.set_sector(0, *position, &[0; 512]);
        assert_eq!(numbers(&bench), (2, 2), "the other area has it");
        bench.set_sector(1, *position, &[0; 512]);
        assert_eq!(numbers(&bench), (1, 1), "without the sector at {position}");
        bench.set_sector(0, *position, first);
        bench.set_sector(1, *position, second);
    }
    assert_eq!(numbers(&bench), (2, 2));
}

#[test]
fn a_snapshot_holds_all_clients() {
    let bench = Bench::of(Bench::small_geometry(), 256 << 10);
    let mut clients = Numbered { number: Number(9), ..Numbered::default() };
    trim(4).marks.iter().for_each(|edit| clients.marks.edit(edit));
    run(&bench.io, Manifest::create(&bench.io, &bench.geometry, 7, &clients), || false).unwrap().unwrap();
    assert_eq!(numbers(&bench), (9, 4));
}

#[test]
fn an_item_of_an_unknown_client_is_refused_and_named() {
    let mut bench = Bench::of(Bench::small_geometry(), 256 << 10);
    let Installer { manifest, clients, .. } = &mut bench.installer;
    run(&bench.io, manifest.append(clients, &two_clients(1)), || false).unwrap().unwrap();
    let of_future = |refusal: Error| {
        let text = refusal.to_string();
        assert!(matches!(refusal, Error::OtherFormat(_)), "{text}");
        assert!(text.contains("client 77") && text.contains("newer tapetum"), "{text}");
    };
    of_future(bench.refusal());
    // A list with an unknown client is not repaired.
    let reading =
        Manifest::recover_readable(&bench.io, bench.drive.local(), &bench.geometry, 7, || Clients::empty(engine));
    of_future(run(&bench.io, reading, || false).unwrap().err().unwrap());
    // An unknown client in a snapshot is not passed over, either.
    let numbered = Numbered::default();
    run(&bench.io, Manifest::create(&bench.io, &bench.geometry, 7, &numbered), || false).unwrap().unwrap();
    of_future(bench.refusal());
}

#[test]
fn an_edit_that_does_not_fit_names_its_frame() {
    let mut bench = Bench::of(Bench::small_geometry(), 256 << 10);
    let frame = Edits { things: vec![(3, Vec::new())], ..Edits::default() };
    run(&bench.io, bench.installer.append(&frame.items()), || false).unwrap().unwrap();
    let refusal = bench.refusal();
    assert!(matches!(refusal, Error::Corrupt(_)));
    let text = refusal.to_string();
    assert!(text.contains("drops thing 3") && text.contains("frame 2 of epoch 1"), "{text}");
}
