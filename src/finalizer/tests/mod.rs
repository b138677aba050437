mod examples;
mod interleavings;
mod world;
