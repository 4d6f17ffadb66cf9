//! What was shown, told once more at the end.

use std::time::Instant;

use anyhow::Result;

use super::title;

#[derive(Default)]
pub(super) struct Story {
    scenes: Vec<Scene>,
}

struct Scene {
    feature: &'static str,
    shown: &'static str,
    seconds: f64,
}

impl Story {
    /// Plays a scene; only one that was played to its end is told.
    pub(super) async fn play<T>(
        &mut self,
        feature: &'static str,
        shown: &'static str,
        scene: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let begin = Instant::now();
        let outcome = scene.await?;
        self.scenes.push(Scene { feature, shown, seconds: begin.elapsed().as_secs_f64() });
        Ok(outcome)
    }

    /// The table of all scenes.
    pub(super) fn tell(&self) {
        title("What was shown");
        println!("  {:<15} {:>7}  WHAT", "FEATURE", "SECONDS");
        let mut last = "";
        for Scene { feature, shown, seconds } in &self.scenes {
            let name = if *feature == last { "" } else { feature };
            println!("  {name:<15} {seconds:>7.1}  {shown}");
            last = feature;
        }
    }
}
