// Before the first paint: the theme that this browser chose, if it chose one.
const chosen = localStorage.getItem("serve-app-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
