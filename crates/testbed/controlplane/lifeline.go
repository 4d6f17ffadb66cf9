package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// lifelineVariable is set by a parent that holds the other end of our standard input for as long as it lives.
	lifelineVariable = "CLAIMKEEPER_LIFELINE"
	// runDirectoryVariable names the directory that belongs to the parent and is to go with it.
	runDirectoryVariable = "CLAIMKEEPER_LIFELINE_REMOVE"
)

// holdLifeline ends this process when its parent is gone, however it went: the kernel closes the parent's end of the pipe
// even after SIGKILL. Every component tidies up, because any of them may be the only one that was running.
func holdLifeline() {
	if os.Getenv(lifelineVariable) == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		if directory := os.Getenv(runDirectoryVariable); directory != "" {
			wakeSiblings(directory)
			removeRunDirectory(directory)
		}
		os.Exit(1)
	}()
}

// wakeSiblings continues components that the parent had paused: a stopped process does not notice the end of its input.
func wakeSiblings(directory string) {
	files, _ := filepath.Glob(filepath.Join(directory, "pids", "*"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// removeRunDirectory tries for a while, because the other components may still be writing until they have seen the end too.
func removeRunDirectory(directory string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if os.RemoveAll(directory) == nil {
			return
		}
	}
}
