use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{name, queue};

const KEYS: usize = 100;
const ADDS: u32 = 10_000;
const NAMESPACES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Default)]
struct Watched {
    running: AtomicBool,
    /// How often the key was added, and how many of these adds its last run saw.
    added: AtomicU32,
    seen: AtomicU32,
    overlaps: AtomicU32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_adds_of_a_hundred_keys_never_overlap_and_none_is_missed() {
    let queue = queue();
    let keys: Arc<Vec<Watched>> = Arc::new((0..KEYS).map(|_| Watched::default()).collect());

    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, keys) = (queue.clone(), Arc::clone(&keys));
            tokio::spawn(async move {
                while let Some(item) = queue.next().await {
                    let watched = &keys[item.number as usize];
                    if watched.running.swap(true, Ordering::SeqCst) {
                        watched.overlaps.fetch_add(1, Ordering::SeqCst);
                    }
                    watched.seen.store(watched.added.load(Ordering::SeqCst), Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    watched.running.store(false, Ordering::SeqCst);
                }
            })
        })
        .collect();

    let adders: Vec<_> = (0..4)
        .map(|adder| {
            let (queue, keys) = (queue.clone(), Arc::clone(&keys));
            tokio::spawn(async move {
                for add in 0..ADDS / 4 {
                    let number = (add * 7 + adder) % 100;
                    keys[number as usize].added.fetch_add(1, Ordering::SeqCst);
                    let key = name(NAMESPACES[number as usize % 4], number);
                    match add % 5 {
                        0 => queue.add_after(key, Duration::from_millis(1)),
                        _ => queue.add(key),
                    }
                    if add % 16 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for adder in adders {
        adder.await.unwrap();
    }

    let all_seen = || keys.iter().all(|key| key.seen.load(Ordering::SeqCst) == key.added.load(Ordering::SeqCst));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !all_seen() {
        assert!(tokio::time::Instant::now() < deadline, "a key did not run after its last add");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    queue.shut_down();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(keys.iter().map(|key| key.added.load(Ordering::SeqCst)).sum::<u32>(), ADDS);
    assert_eq!(keys.iter().map(|key| key.overlaps.load(Ordering::SeqCst)).sum::<u32>(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_add_is_missed_by_a_worker_that_is_about_to_wait() {
    let queue = queue();
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            while let Some(item) = queue.next().await {
                let number = item.number;
                drop(item);
                report.send(number).unwrap();
            }
        }
    });
    for number in 0..5_000 {
        queue.add(name("a", number));
        let reported = tokio::time::timeout(Duration::from_secs(10), reports.recv()).await;
        assert_eq!(reported, Ok(Some(number)), "the worker did not wake up");
    }
    queue.shut_down();
    worker.await.unwrap();
}
