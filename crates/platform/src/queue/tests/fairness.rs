use super::{drain, name, next_ready, queue};

#[tokio::test]
async fn the_burst_of_one_namespace_delays_another_by_one_turn_only() {
    let queue = queue();
    for number in 0..10_000 {
        queue.add(name("burst", number));
    }
    assert_eq!(next_ready(&queue).unwrap().namespace, "burst");
    queue.add(name("quiet", 1));
    let next_two: Vec<_> = (0..2).filter_map(|_| next_ready(&queue).map(|item| item.namespace)).collect();
    assert!(next_two.contains(&"quiet"), "{next_two:?}");
}

#[tokio::test]
async fn namespaces_take_turns_and_those_without_keys_have_none() {
    let queue = queue();
    for (namespace, count) in [("a", 4), ("b", 1), ("", 2)] {
        (0..count).for_each(|number| queue.add(name(namespace, number)));
    }
    let namespaces: Vec<_> = drain(&queue).into_iter().map(|key| key.namespace).collect();
    assert_eq!(namespaces, ["a", "b", "", "a", "", "a", "a"]);
}

#[tokio::test]
async fn a_namespace_that_keeps_adding_does_not_jump_its_turn() {
    let queue = queue();
    queue.add(name("eager", 0));
    queue.add(name("patient", 0));
    let mut order = Vec::new();
    for number in 1..6 {
        let item = next_ready(&queue).unwrap();
        order.push(item.namespace);
        queue.add(name("eager", number));
    }
    assert_eq!(order, ["eager", "patient", "eager", "eager", "eager"]);
}
