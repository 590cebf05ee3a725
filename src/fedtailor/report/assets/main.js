// Everything in its place; one section that fails must not take the others with it.
applyTheme();
for (const start of [startForest, startTable, startLegends, startCurves, startSpread, startGain, startCost, startTested, startExplorer, startLearnt, startLandscape, startTrajectory]) {
  try {
    start();
  } catch (error) {
    console.error(`${start.name}: ${error.stack || error}`);
  }
}
document.documentElement.dataset.ready = "yes";
